// Whether a text holds another; the whole text is shown where that is not so.
#pragma once

#include <gtest/gtest.h>

#include <string>

#define EXPECT_HAS(text, part)                                 \
    EXPECT_NE(std::string(text).find(part), std::string::npos) \
        << "looked for \"" << (part) << "\" in:\n"             \
        << (text)
#define EXPECT_HAS_NOT(text, part) \
    EXPECT_EQ(std::string(text).find(part), std::string::npos) << (text)
