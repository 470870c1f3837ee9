// Eight codes of a thread as a little-endian bit stream of the encoding, for codes of 1, 2, 4, 6
// and 8 bits.
#pragma once

#include "codecs/gpu/elements.cuh"

namespace slimwire {
namespace {

// The bit stream of the low bits of eight codes: w[0] where they fit, else four in each word.
template <int kBits>
__device__ __forceinline__ void pack_codes(const uint32_t (&code)[kPerThread], uint32_t (&w)[2]) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    w[0] = w[1] = 0;
    if constexpr (kBits == 8) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t low = __byte_perm(code[4 * j], code[4 * j + 1], 0x0040);
            const uint32_t high = __byte_perm(code[4 * j + 2], code[4 * j + 3], 0x0040);
            w[j] = __byte_perm(low, high, 0x5410);
        }
    } else {
        constexpr int kEach = kBits > 4 ? 4 : 8;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            w[k / kEach] |= code[k] << (kBits * (k % kEach)) & kMask << (kBits * (k % kEach));
        }
    }
}

// Writes it; codes of six bits by 16-bit halves, of which `to` is a multiple.
template <int kBits>
__device__ __forceinline__ void put_words(uint8_t* to, const uint32_t (&w)[2]) {
    if constexpr (kBits == 8) {
        *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
    } else if constexpr (kBits == 6) {
        auto* half = reinterpret_cast<uint16_t*>(to);
        half[0] = static_cast<uint16_t>(w[0]);
        half[1] = static_cast<uint16_t>(w[0] >> 16 | w[1] << 8);
        half[2] = static_cast<uint16_t>(w[1] >> 8);
    } else if constexpr (kBits == 4) {
        *reinterpret_cast<uint32_t*>(to) = w[0];
    } else if constexpr (kBits == 1) {
        *to = static_cast<uint8_t>(w[0]);
    } else {
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(w[0]);
    }
}

// Eight codes as they lie in memory.
template <int kBits>
struct RawCodes {
    uint32_t v[kBits == 8 ? 2 : kBits == 6 ? 3 : 1];
};
template <int kBits>
__device__ __forceinline__ void load_codes(const uint8_t* from, RawCodes<kBits>& codes) {
    if constexpr (kBits == 8) {
        const uint2 words = *reinterpret_cast<const uint2*>(from);
        codes.v[0] = words.x;
        codes.v[1] = words.y;
    } else if constexpr (kBits == 4) {
        codes.v[0] = *reinterpret_cast<const uint32_t*>(from);
    } else if constexpr (kBits == 1) {
        codes.v[0] = *from;
    } else {
#pragma unroll
        for (int j = 0; j < kBits / 2; ++j) {
            codes.v[j] = reinterpret_cast<const uint16_t*>(from)[j];
        }
    }
}

// Four codes in the low bits of each word, with rubbish above.
template <int kBits>
__device__ __forceinline__ void code_words(const RawCodes<kBits>& codes, uint32_t (&w)[2]) {
    w[0] = codes.v[0];
    if constexpr (kBits == 8) {
        w[1] = codes.v[1];
    } else if constexpr (kBits == 6) {
        w[0] |= (codes.v[1] & 0xFF) << 16;
        w[1] = codes.v[1] >> 8 | codes.v[2] << 8;
    } else {
        w[1] = w[0] >> (4 * kBits);
    }
}

}  // namespace
}  // namespace slimwire
