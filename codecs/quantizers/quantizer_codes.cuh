// Codes of quantizers and back in kernels, eight elements per thread; the bodies of
// codecs/quantizers/host/quantizer_codes.h.
#pragma once

#include "codecs/gpu/code_stream.cuh"
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/random.cuh"
#include "codecs/quantizers/quantizer_shape.h"

namespace slimwire {
namespace {

// Twice 256 * byte k + byte (k xor 1), plus 1.
__device__ __forceinline__ uint32_t drawn_pair(const EightBytes& bytes, int k) {
    const uint32_t word = bytes.v[k / 4];
    const uint32_t high = word >> (8 * (k % 4)) & 0xFF;
    const uint32_t low = word >> (8 * (k % 4 ^ 1)) & 0xFF;
    return (high << 8 | low) * 2 + 1;
}

// floor(y + drawn / 2^kQuantizerFraction).
__device__ __forceinline__ uint32_t round_up_or_down(float y, uint32_t drawn) {
    const auto fixed =
        static_cast<uint32_t>(__fmul_rn(y, static_cast<float>(1 << kQuantizerFraction)));
    return (fixed + drawn) >> kQuantizerFraction;
}

// The code of a finite p, with rubbish above it.
template <class Kind>
__device__ __forceinline__ uint32_t
quantizer_code(float p, float inverse, float largest, uint32_t drawn) {
    const uint32_t bits = __float_as_uint(p);
    if constexpr (Kind::kRule == QuantizerRule::kSign) {
        return bits >> 31;
    } else {
        const uint32_t steps =
            __float_as_uint(__fmul_rn(__uint_as_float(bits & kMagnitudeMask), inverse));
        const uint32_t y = min(steps, __float_as_uint(largest));
        if constexpr (Kind::kRule == QuantizerRule::kLevels) {
            const uint32_t code = round_up_or_down(__uint_as_float(y), drawn);
            return bits >> 31 != 0 ? 0u - code : code;
        } else {
            constexpr uint32_t kBelow = 127 - Kind::kTop;
            uint32_t code = ((y + (drawn << (23 - kQuantizerFraction))) >> 23) - kBelow;
            if constexpr (kBelow != 0) {
                constexpr float kPerSmallest = static_cast<float>(1 << (Kind::kTop - 1));
                if (y < (kBelow + 1) << 23) {
                    code = round_up_or_down(__fmul_rn(__uint_as_float(y), kPerSmallest), drawn);
                }
            }
            return code | (bits >> 31) << (Kind::kBits - 1);
        }
    }
}

// The value of the code at the bottom of `code`.
template <class Kind>
__device__ __forceinline__ float quantizer_value(uint32_t code, float scale) {
    if constexpr (Kind::kRule == QuantizerRule::kSign) {
        return __uint_as_float(__float_as_uint(scale) ^ code << 31);
    } else if constexpr (Kind::kRule == QuantizerRule::kLevels) {
        constexpr int kUp = 32 - Kind::kBits;
        return __fmul_rn(__int2float_rn(static_cast<int32_t>(code << kUp) >> kUp), scale);
    } else {
        constexpr uint32_t kBelow = 127 - Kind::kTop;
        const uint32_t magnitude = code & Kind::kTop;
        const uint32_t power = magnitude != 0 ? (magnitude + kBelow) << 23 : 0;
        const uint32_t sign = code >> (Kind::kBits - 1) << 31;
        return __fmul_rn(__uint_as_float(power | sign), scale);
    }
}

// Eight codes and the scale of their block.
template <class Kind>
struct RawQuantizerCodes {
    RawCodes<Kind::kBits> codes;
    uint32_t scale;
};

// Their values.
template <class Kind>
__device__ __forceinline__ void quantizer_values(const RawQuantizerCodes<Kind>& raw,
                                                 uint32_t most,
                                                 Eight& x) {
    const bool poison = (raw.scale & kMagnitudeMask) >= kInfinityBits;
    const float scale = __uint_as_float(poison ? kNanFloat32 : raw.scale);
    uint32_t w[2];
    code_words(raw.codes, w);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        x.v[k] = quantizer_value<Kind>(w[k / 4] >> (Kind::kBits * (k % 4)), scale);
    }
    keep_within(most, scale, Kind::kReach, x);
}

}  // namespace
}  // namespace slimwire
