// The part of a rule's match that asks for parameters: which ranges of a call it takes. Read by
// policy_parser.cpp, asked by plans. Immutable values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/carried.h"

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
    [[nodiscard]] bool matches(const CarriedRange& range) const noexcept;
    // Whether it takes all that `other` takes. Exact for dimensions and indices; of names it knows
    // equal patterns and "*" alone, so it may say no where yes is true.
    [[nodiscard]] bool covers(const ParameterMatch& other) const noexcept;
    bool operator==(const ParameterMatch&) const = default;
};

// Whether the whole name is of the pattern: '*' stands for any run of characters, '?' for one, and
// every other character for itself.
[[nodiscard]] bool name_matches(std::string_view pattern, std::string_view name) noexcept;

}  // namespace slimwire
