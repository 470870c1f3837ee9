// What the first columns of a low-rank factor are drawn from, and how columns are scaled: the same
// on host and device, and on all ranks.
#pragma once

#include <cstdint>

#include "codecs/args.h"
#include "codecs/numeric.h"
#include "codecs/threefry.h"

namespace slimwire {

struct FactorDraw {
    RandomWords key;
    uint32_t step;
};

// `counted`: what step_ptr holds.
SLIMWIRE_EVERYWHERE FactorDraw factor_draw(const RandomKey& random, uint32_t counted) {
    return {{{random.seed, random.tensor, 0, static_cast<uint32_t>(RandomPurpose::kFactor)}},
            random.step + counted};
}

// Element `index` of the state: uniform in [-1, 1), in steps of 2^-23.
SLIMWIRE_EVERYWHERE float drawn_factor(const FactorDraw& draw, uint64_t index) {
    uint32_t x[4] = {static_cast<uint32_t>(index / 4), static_cast<uint32_t>((index / 4) >> 32),
                     draw.step, 0};
    threefry(x, draw.key);
    const uint32_t low = index % 2 == 0 ? x[0] : x[1];
    const uint32_t high = index % 2 == 0 ? x[2] : x[3];
    return static_cast<float>((index % 4 < 2 ? low : high) >> 8) * 0x1p-23f - 1.0f;
}

// The power of two that brings a column whose largest magnitude has these bits into [1, 2); 0
// where the column has no content: zeros and subnormal numbers. Not asked of what is not finite.
SLIMWIRE_EVERYWHERE float factor_scale(uint32_t largest) {
    const uint32_t exponent = largest >> 23;
    const uint32_t inverse = 254 - (exponent < 253 ? exponent : 253);
    const uint32_t bits = exponent == 0 ? 0 : inverse << 23;
    return __builtin_bit_cast(float, bits);
}

// What such a column is multiplied by for the state, where it is as large as without product_scale;
// 1 where that leaves the range.
SLIMWIRE_EVERYWHERE float kept_scale(uint32_t largest, float product_scale) {
    const float whole = 1.0f / product_scale;
    const float most = whole * __builtin_bit_cast(float, largest);
    return most - most == 0.0f ? whole : 1.0f;
}

// factor_scale() of a column that another one makes up for, of subnormal numbers 2^126; 1 where it
// is zero or not finite.
SLIMWIRE_EVERYWHERE float balancing_scale(uint32_t largest) {
    constexpr uint32_t kLeastNormal = 1u << 23;
    return largest == 0 || largest >= kInfinityBits
               ? 1.0f
               : factor_scale(largest < kLeastNormal ? kLeastNormal : largest);
}

}  // namespace slimwire
