#include "collectives/parameter_match.h"

#include <algorithm>

namespace slimwire {

bool name_matches(std::string_view pattern, std::string_view name) noexcept {
    size_t p = 0, n = 0;
    // Where to go on when what follows the last star does not fit: one character later.
    size_t after_star = std::string_view::npos, retry = 0;
    while (n < name.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            after_star = ++p;
            retry = n;
        } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
            ++p;
            ++n;
        } else if (after_star != std::string_view::npos) {
            p = after_star;
            n = ++retry;
        } else {
            return false;
        }
    }
    return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool ParameterMatch::any() const noexcept {
    return dimensions == kAllDimensions && indices.empty() && names.empty();
}

bool ParameterMatch::matches(const CarriedRange& range) const noexcept {
    const unsigned bit = std::min<unsigned>(range.dimensions, kMostDimensions);
    return (dimensions >> bit & 1u) != 0 &&
           (indices.empty() || std::any_of(indices.begin(), indices.end(),
                                           [&](const Indices& one) {
                                               return one.first <= range.parameter &&
                                                      range.parameter <= one.last;
                                           })) &&
           (names.empty() || (!range.name.empty() &&
                              std::any_of(names.begin(), names.end(), [&](const std::string& one) {
                                  return name_matches(one, range.name);
                              })));
}

bool ParameterMatch::covers(const ParameterMatch& other) const noexcept {
    if ((other.dimensions & ~dimensions) != 0) {
        return false;
    }
    const auto holds = [&](const Indices& wanted) {
        return std::any_of(indices.begin(), indices.end(), [&](const Indices& one) {
            return one.first <= wanted.first && wanted.last <= one.last;
        });
    };
    if (!indices.empty() && (other.indices.empty() ||
                             !std::all_of(other.indices.begin(), other.indices.end(), holds))) {
        return false;
    }
    if (names.empty()) {
        return true;
    }
    return !other.names.empty() &&
           std::all_of(other.names.begin(), other.names.end(), [&](const std::string& wanted) {
               return std::any_of(names.begin(), names.end(), [&](const std::string& one) {
                   return one == wanted || one == "*";
               });
           });
}

}  // namespace slimwire
