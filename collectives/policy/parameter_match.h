// The part of a rule's match that asks for parameters: which ranges of a call it takes. Read by
// policy_parser.cpp, asked by plans. Immutable values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/policy/parameter_ranges.h"

namespace slimwire {

// Of several conditions all must hold.
struct ParameterMatch {
    struct Indices {  // both ends inclusive
        uint32_t first = 0;
        uint32_t last = 0;
        bool operator==(const Indices&) const = default;
    };
    // Bit d: parameters of d dimensions; the last bit also stands for more.
    static constexpr uint32_t kAllDimensions = 0x1ff;
    static constexpr unsigned kMostDimensions = 8;

    uint32_t dimensions = kAllDimensions;
    std::vector<Indices> indices;    // ascending, apart from each other; empty: any
    std::vector<std::string> names;  // ascending patterns of name_matches(); empty: any

    // Whether it takes every range, also one of which nothing is known.
    [[nodiscard]] bool any() const noexcept;
    [[nodiscard]] bool matches(const ParameterRange& range) const noexcept;
    // Whether its indices and names take all that those of `other` take. Of names it knows equal
    // patterns and "*" alone, so it may say no where yes is true.
    [[nodiscard]] bool covers_but_for_dimensions(const ParameterMatch& other) const noexcept;
    bool operator==(const ParameterMatch&) const = default;
};

// "1d", ..., "5d" into the bits of ParameterMatch::dimensions, "2d+" with those of more dimensions;
// 0: another text.
[[nodiscard]] uint32_t parse_dimensions(std::string_view text) noexcept;
inline constexpr char kDimensionsAccepted[] = "1d, 2d, 3d, 4d, 5d, and with a plus (2d+) or more";
// The inverse, one text for each number or run to the top.
[[nodiscard]] std::vector<std::string> dimensions_texts(uint32_t dimensions);
// "7", "10-20", both ends inclusive.
[[nodiscard]] std::optional<ParameterMatch::Indices> parse_indices(std::string_view text) noexcept;
[[nodiscard]] std::string indices_text(const ParameterMatch::Indices& indices);
// Sorted, and those that touch or overlap as one.
[[nodiscard]] std::vector<ParameterMatch::Indices> merged(
    std::vector<ParameterMatch::Indices> indices);

// Whether `wide` takes all that `narrow` takes. Empty ones take everything.
[[nodiscard]] bool covers_all(const std::vector<ParameterMatch::Indices>& wide,
                              const std::vector<ParameterMatch::Indices>& narrow) noexcept;

// Whether the whole name is of the pattern: '*' stands for any run of characters, '?' for one, and
// every other character for itself.
[[nodiscard]] bool name_matches(std::string_view pattern, std::string_view name) noexcept;

}  // namespace slimwire
