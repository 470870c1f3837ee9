// fp32 to codes of a small float and back in kernels, eight elements per thread; the bodies of
// codecs/block_float/host/block_float_rounding.h and block_float_lanes.h.
#pragma once

#include <type_traits>

#include "codecs/gpu/code_stream.cuh"
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/random.cuh"

namespace slimwire {
namespace {

// The code of a finite y; `drawn` is twice its random byte plus 1.
template <class Format, bool kStochastic>
__device__ __forceinline__ uint32_t float_code(float y, uint32_t drawn) {
    constexpr int kDropped = 23 - Format::kFractionBits;
    const uint32_t largest = Format::kMaxBits;
    const uint32_t smallest = Format::kMinNormalBits;
    const uint32_t bits = __float_as_uint(y);
    const uint32_t magnitude = min(bits & kMagnitudeMask, largest);
    const uint32_t exponent = max(magnitude & kInfinityBits, smallest);
    uint32_t steps;
    if constexpr (kStochastic) {
        const float power = __uint_as_float(((254u + 9 + Format::kFractionBits) << 23) - exponent);
        const auto fixed = static_cast<uint32_t>(__fmul_rn(__uint_as_float(magnitude), power));
        steps = (fixed + drawn) >> 9;
    } else {
        const float magic = __uint_as_float(exponent + (static_cast<uint32_t>(kDropped) << 23));
        steps = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), magic)) & 0xFF;
    }
    const uint32_t code = steps + ((exponent - smallest) >> kDropped);
    return code | (bits >> (32 - Format::kBits) & (1u << (Format::kBits - 1)));
}

// The bit stream of the codes of eight p. The hardware's conversion, where there is one, rounds and
// saturates as float_code does for nearest even; tests/gpu/codecs compares them.
template <class Format, bool kStochastic>
__device__ __forceinline__ void float_words(const Eight& p,
                                            float inverse,
                                            const EightBytes& bytes,
                                            uint32_t (&w)[2]) {
    Eight y;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        y.v[k] = __fmul_rn(p.v[k], inverse);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (!kStochastic && Format::kBits == 8) {
        uint16_t pair[kPerThread / 2];
#pragma unroll
        for (int j = 0; j < kPerThread / 2; ++j) {
            const float low = y.v[2 * j];
            const float high = y.v[2 * j + 1];
            if constexpr (std::is_same_v<Format, Fp8e4m3Format>) {
                asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
                    : "=h"(pair[j])
                    : "f"(low), "f"(high));
            } else {
                asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;"
                    : "=h"(pair[j])
                    : "f"(low), "f"(high));
            }
        }
        w[0] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
        w[1] = pair[2] | static_cast<uint32_t>(pair[3]) << 16;
    } else
#endif
    {
        uint32_t code[kPerThread];
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            code[k] = float_code<Format, kStochastic>(y.v[k], bytes.drawn(k));
        }
        pack_codes<Format::kBits>(code, w);
    }
}

// The value of a code, infinity and NaN included.
template <class Format>
__device__ __forceinline__ float float_of_code(uint32_t code, Format) {
    constexpr uint32_t kSign = 1u << (Format::kBits - 1);
    constexpr int kDropped = 23 - Format::kFractionBits;
    const float power = __uint_as_float(Format::kMinNormalBits + (126u << 23));
    const float magnitude = __fmul_rn(__uint_as_float((code & (kSign - 1)) << kDropped), power);
    const bool nan = std::is_same_v<Format, Fp8e4m3Format> && (code & 0x7F) == 0x7F;
    return __uint_as_float((nan ? kNanFloat32 : __float_as_uint(magnitude)) |
                           (code & kSign) << (32 - Format::kBits));
}
__device__ __forceinline__ float float_of_code(uint32_t code, Fp8e5m2Format) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(code << 8)));
}

// The values of the two codes at the bottom of `pair`.
template <class Format>
__device__ __forceinline__ void value_pair(uint32_t pair, float& low, float& high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (std::is_same_v<Format, Fp8e4m3Format>) {
        uint32_t halves;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
        low = __half2float(__ushort_as_half(static_cast<unsigned short>(halves)));
        high = __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16)));
    } else
#endif
    {
        low = float_of_code(pair & ((1u << Format::kBits) - 1), Format{});
        high = float_of_code(pair >> Format::kBits & ((1u << Format::kBits) - 1), Format{});
    }
}

// value * scale of eight codes, four in each word.
template <class Format>
__device__ __forceinline__ void scale_values(const uint32_t (&w)[2], float scale, Eight& x) {
#pragma unroll
    for (int k = 0; k < kPerThread; k += 2) {
        value_pair<Format>(w[k / 4] >> (Format::kBits * (k % 4)), x.v[k], x.v[k + 1]);
        x.v[k] = __fmul_rn(x.v[k], scale);
        x.v[k + 1] = __fmul_rn(x.v[k + 1], scale);
    }
}

}  // namespace
}  // namespace slimwire
