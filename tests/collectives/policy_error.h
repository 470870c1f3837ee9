// Of tests of wrong policies: the message that a text gets, in one line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "collectives/policy/policy.h"

namespace slimwire {

inline std::string error_of(const std::string& text) {
    const auto policy = parse_policy(text, "p.toml");
    EXPECT_FALSE(policy.ok()) << text;
    const std::string message = policy.status().message();
    EXPECT_EQ(policy.status().code(), policy.ok() ? Code::kOk : Code::kInvalidArgument);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
}

}  // namespace slimwire
