// Precompiled for the sources of the command: what most of them include from outside. gcc warns of a
// #pragma once in what it compiles by itself.
#ifndef SLIMWIRE_TOOLS_CLI_COMMON_PCH_H
#define SLIMWIRE_TOOLS_CLI_COMMON_PCH_H

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#endif
