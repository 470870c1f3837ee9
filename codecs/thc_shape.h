// How THC's levels lie in words, and what its host bodies on every instruction set share with the
// kernels. Nothing here may become a shared symbol. Rules: FORMAT.md, "Summable Hadamard levels".
#pragma once

#include <stdint.h>

#include "codecs/threefry.h"

namespace slimwire {

inline constexpr int kThcGroup = 1024;                   // elements that share a scale
inline constexpr uint32_t kMinThcScaleBits = 27u << 23;  // 2^-100; below, a group counts as zeros

// Bits of the largest sum of all ranks' levels, and how many such fields a word holds: they add up
// without a carry.
SLIMWIRE_EVERYWHERE int32_t thc_field_bits(int64_t levels, int64_t ranks) {
    int32_t bits = 0;
    for (int64_t largest = levels * ranks; largest > 0; largest /= 2) {
        ++bits;
    }
    return bits;
}
SLIMWIRE_EVERYWHERE int64_t thc_words_of(int64_t elems, int32_t field_bits) {
    const int64_t fields = 64 / field_bits;
    return (elems + fields - 1) / fields;
}
// Elements of group `group`, those that complete its last rotation included.
SLIMWIRE_EVERYWHERE int64_t thc_group_elems(int64_t count, int64_t group, int64_t block) {
    const int64_t left = (count - group * kThcGroup + block - 1) / block * block;
    return left < kThcGroup ? left : kThcGroup;
}

// Of one call.
struct ThcDraw {
    RandomWords signs, rounding;
    uint32_t step;
};

// What the outermost levels of a group stand for: NaN of a group that is not finite, 0 of one of
// zeros.
SLIMWIRE_EVERYWHERE float thc_reach(uint32_t agreed, float clip) {
    if (agreed >= 0x7F800000u) {
        return __builtin_bit_cast(float, 0x7FC00000u);
    }
    const float reach = clip * __builtin_bit_cast(float, agreed);
    return __builtin_bit_cast(uint32_t, reach) < kMinThcScaleBits ? 0.0f : reach;
}

}  // namespace slimwire
