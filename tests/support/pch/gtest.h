// Precompiled for the test programs of several files: gcc warns of a #pragma once in what it
// compiles by itself.
#ifndef SLIMWIRE_TESTS_SUPPORT_PCH_GTEST_H
#define SLIMWIRE_TESTS_SUPPORT_PCH_GTEST_H

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#endif
