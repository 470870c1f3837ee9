#include "collectives/policy/parameter_match.h"

#include <algorithm>
#include <charconv>

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

bool ParameterMatch::matches(const ParameterRange& range) const noexcept {
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

bool covers_all(const std::vector<ParameterMatch::Indices>& wide,
                const std::vector<ParameterMatch::Indices>& narrow) noexcept {
    const auto holds = [&](const ParameterMatch::Indices& wanted) {
        return std::any_of(wide.begin(), wide.end(), [&](const ParameterMatch::Indices& one) {
            return one.first <= wanted.first && wanted.last <= one.last;
        });
    };
    return wide.empty() || (!narrow.empty() && std::all_of(narrow.begin(), narrow.end(), holds));
}

bool ParameterMatch::covers_but_for_dimensions(const ParameterMatch& other) const noexcept {
    if (!covers_all(indices, other.indices)) {
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

uint32_t parse_dimensions(std::string_view text) noexcept {
    constexpr unsigned kMostWritten = 5;
    if (text.size() < 2 || text.size() > 3 || text[0] < '1' ||
        text[0] > static_cast<char>('0' + kMostWritten) || text[1] != 'd' ||
        (text.size() == 3 && text[2] != '+')) {
        return 0;
    }
    const uint32_t bit = 1u << (text[0] - '0');
    return text.size() == 2 ? bit : ParameterMatch::kAllDimensions & ~(bit - 1);
}

std::vector<std::string> dimensions_texts(uint32_t dimensions) {
    std::vector<std::string> texts;
    for (unsigned d = 0; d <= ParameterMatch::kMostDimensions; ++d) {
        if ((dimensions >> d & 1u) == 0) {
            continue;
        }
        const uint32_t from_here = ParameterMatch::kAllDimensions & ~((1u << d) - 1);
        if ((dimensions & from_here) == from_here) {
            texts.push_back(std::to_string(d) + "d+");
            break;
        }
        texts.push_back(std::to_string(d) + "d");
    }
    return texts;
}

std::optional<ParameterMatch::Indices> parse_indices(std::string_view text) noexcept {
    const size_t dash = text.find('-');
    const auto number = [](std::string_view digits, uint32_t* value) {
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), *value);
        return error == std::errc() && end == digits.data() + digits.size();
    };
    ParameterMatch::Indices indices;
    if (!number(text.substr(0, dash), &indices.first)) {
        return std::nullopt;
    }
    indices.last = dash == std::string_view::npos ? indices.first : UINT32_MAX;
    if (dash < text.size() - 1 && !number(text.substr(dash + 1), &indices.last)) {
        return std::nullopt;
    }
    return indices.first <= indices.last ? std::optional(indices) : std::nullopt;
}

std::string indices_text(const ParameterMatch::Indices& indices) {
    const std::string first = std::to_string(indices.first);
    return indices.last == indices.first ? first
           : indices.last == UINT32_MAX  ? first + "-"
                                         : first + "-" + std::to_string(indices.last);
}

std::vector<ParameterMatch::Indices> merged(std::vector<ParameterMatch::Indices> indices) {
    std::sort(indices.begin(), indices.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<ParameterMatch::Indices> out;
    for (const ParameterMatch::Indices& one : indices) {
        if (!out.empty() && one.first <= uint64_t{out.back().last} + 1) {
            out.back().last = std::max(out.back().last, one.last);
        } else {
            out.push_back(one);
        }
    }
    return out;
}

}  // namespace slimwire
