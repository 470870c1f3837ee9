// Checks of arguments for CLI11, whose own take nan and name limits of 309 digits.
#pragma once

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/policy/names.h"

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

// CLI11 takes -1 for the largest.
inline CLI::Validator whole_number(uint64_t least, uint64_t most) {
    return {[=](std::string& text) {
                uint64_t value = 0;
                const char* const end = text.data() + text.size();
                const auto read = std::from_chars(text.data(), end, value);
                return read.ec == std::errc() && read.ptr == end && value >= least && value <= most
                           ? std::string()
                           : fmt::format("'{}': accepted: a whole number from {} to {}", text,
                                         least, most);
            },
            "WHOLE"};
}

// A type of elements by any of its names, which becomes the one of `accepted`.
inline CLI::Validator type_among(std::vector<std::string_view> accepted) {
    return {[=](std::string& text) {
                const std::optional<DType> type = parse_dtype(text);
                for (const std::string_view name : accepted) {
                    if (type && name == dtype_name(*type)) {
                        text = name;
                        return std::string();
                    }
                }
                return fmt::format("'{}': accepted: {}", text, join(accepted));
            },
            ""};
}

}  // namespace slimwire::cli
