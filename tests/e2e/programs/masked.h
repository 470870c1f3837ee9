// Data whose largest elements are known: for programs that check what codecs with pair=mask carry.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace slimwire::test {

using Values = std::vector<float>;

// In [-2, 2), by its place.
inline float noise(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ b * 0xc2b2ae3d27d4eb4full ^ c * 0xd6e8feb86659fd93ull;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 29;
    return static_cast<float>(static_cast<int64_t>(x >> 32) - (int64_t{1} << 31)) / 1073741824.0f;
}

// 1 for the `kept` largest, of equal ones the first.
inline Values mask_of(const Values& of, size_t kept) {
    std::vector<size_t> order(of.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::fabs(of[a]) > std::fabs(of[b]); });
    Values out(of.size());
    for (size_t i = 0; i < kept; ++i) {
        out[order[i]] = 1;
    }
    return out;
}

inline Values masked(const Values& of, const Values& by) {
    Values out(of.size());
    for (size_t i = 0; i < of.size(); ++i) {
        out[i] = by[i] != 0 ? of[i] : 0.0f;
    }
    return out;
}

}  // namespace slimwire::test
