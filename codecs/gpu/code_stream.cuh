// Eight codes of a thread as a little-endian bit stream of the encoding, for codes of 2, 4, 6 and 8
// bits.
#pragma once

#include "codecs/gpu/elements.cuh"

namespace slimwire {
namespace {

// Writes the low bits of eight codes; six-bit ones by 16-bit halves, of which `to` is a multiple.
template <int kBits>
__device__ __forceinline__ void put_codes(uint8_t* to, const uint32_t (&code)[kPerThread]) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    if constexpr (kBits >= 6) {
        constexpr int kHalfBits = 4 * kBits;
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w[k / 4] |= (code[k] & kMask) << (kBits * (k % 4));
        }
        if constexpr (kBits == 8) {
            *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
        } else {
            auto* half = reinterpret_cast<uint16_t*>(to);
            half[0] = static_cast<uint16_t>(w[0]);
            half[1] = static_cast<uint16_t>(w[0] >> 16 | w[1] << (kHalfBits - 16));
            half[2] = static_cast<uint16_t>(w[1] >> (32 - kHalfBits));
        }
    } else {
        uint32_t w = 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w |= (code[k] & kMask) << (kBits * k);
        }
        if constexpr (kBits == 4) {
            *reinterpret_cast<uint32_t*>(to) = w;
        } else {
            *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(w);
        }
    }
}

// Reads them: four codes in the low bits of each word, with rubbish above.
template <int kBits>
__device__ __forceinline__ void get_code_words(const uint8_t* from, uint32_t (&w)[2]) {
    if constexpr (kBits == 8) {
        const uint2 words = *reinterpret_cast<const uint2*>(from);
        w[0] = words.x;
        w[1] = words.y;
    } else if constexpr (kBits == 6) {
        const auto* half = reinterpret_cast<const uint16_t*>(from);
        w[0] = half[0] | static_cast<uint32_t>(half[1] & 0xFF) << 16;
        w[1] = half[1] >> 8 | static_cast<uint32_t>(half[2]) << 8;
    } else if constexpr (kBits == 4) {
        w[0] = *reinterpret_cast<const uint32_t*>(from);
        w[1] = w[0] >> 16;
    } else {
        w[0] = *reinterpret_cast<const uint16_t*>(from);
        w[1] = w[0] >> 8;
    }
}

}  // namespace
}  // namespace slimwire
