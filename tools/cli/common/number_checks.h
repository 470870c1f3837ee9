// Checks of numbers for CLI11, whose own take nan and name limits of 309 digits.
#pragma once

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <string>

namespace slimwire::cli {

// From `least` on, up to `most`; no nan.
inline CLI::Validator number_between(double least, double most) {
    return {[=](std::string& text) {
                double value = 0;
                return CLI::detail::lexical_cast(text, value) && value >= least && value <= most
                           ? std::string()
                           : fmt::format("'{}': accepted: a number from {:g} to {:g}", text, least,
                                         most);
            },
            "NUMBER"};
}

inline CLI::Validator positive_number() {
    return {[](std::string& text) {
                double value = 0;
                return CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0
                           ? std::string()
                           : fmt::format("'{}': accepted: a finite number above 0", text);
            },
            "POSITIVE"};
}

}  // namespace slimwire::cli
