// Constants of the number formats that the host bodies, the kernels and the tests share. Only
// constants and constant expressions: this header may be read by objects compiled for any
// instruction set, so nothing in it may need a symbol. Rules behind them: codecs/FORMAT.md.
#pragma once

#include <cstdint>

namespace slimwire {

// Every NaN that slimwire writes has these bits; the sign and payload of the source are dropped.
inline constexpr uint32_t kNanFloat32 = 0x7FC00000u;
inline constexpr uint16_t kNanFloat16 = 0x7E00u;
inline constexpr uint16_t kNanBfloat16 = 0x7FC0u;

inline constexpr uint32_t kInfinityBits = 0x7F800000u;  // |bits| >= this: not finite
inline constexpr uint32_t kMagnitudeMask = 0x7FFFFFFFu;

// Largest finite values of the element types, as fp32 bits; no codec's rounding takes a finite
// value beyond them.
inline constexpr uint32_t kMaxFloat32Bits = 0x7F7FFFFFu;
inline constexpr uint32_t kMaxFloat16Bits = 0x477FE000u;   // 65504
inline constexpr uint32_t kMaxBfloat16Bits = 0x7F7F0000u;  // 3.3895e38
inline constexpr float kNoSumLimit = __builtin_inff();
// What becomes of sums that a codec's rounding may have lifted above the largest number: finite
// ones of a magnitude above `most` become it, with their sign; from `overflow` times `most` on they
// are infinite, as no rounding explains them. Averages are never; the default changes nothing.
// `most` is 2^-125 at least, so that it has a half.
struct SumLimit {
    float most = kNoSumLimit;
    float overflow = kNoSumLimit;
};
// The least magnitudes that a store rounds to infinity.
inline constexpr uint32_t kOverflowFloat16Bits = 0x477FF000u;  // 65520
inline constexpr uint32_t kOverflowBfloat16Bits = 0x7F7F8000u;

// fma(x, 1 / s, kRoundingMagic) has the integer nearest to x / s (ties to even) in its low bits,
// because one unit in the last place of a float in [2^23, 2^24) is 1.
inline constexpr float kRoundingMagic = 0x1.8p23f;
inline constexpr uint32_t kRoundingMagicBits = 0x4B400000u;
// The same with eight more bits, 1/256 each, for stochastic rounding.
inline constexpr float kStochasticMagic = 0x1.8p15f;
inline constexpr uint32_t kStochasticMagicBits = 0x47400000u;

// Scales lie in [smallest normal, max_scale_bits()], or are 0 for a block of zeros. The lower end
// keeps 1 / s finite; the upper end keeps Q * s finite.
inline constexpr uint32_t kMinScaleBits = 0x00800000u;
inline constexpr uint32_t kNanScaleBits = kNanFloat32;

// Largest code of a `bits` wide block integer: 127, 7, 1.
constexpr int largest_code(int bits) {
    return (1 << (bits - 1)) - 1;
}

// fp32 bits of the largest bf16 value s such that largest_code * s is finite, the cap of scales of
// either type. With q = 2^k - 1: max / q = 2^(128-k) * 2^k / (2^k - 1), whose significand is the
// periodic fraction 1.(0..01)(0..01)...; for q = 1 it is the largest bf16. A magnitude above q * s
// exceeds it by less than half a code step, so codes stay within q.
constexpr uint32_t max_scale_bits(int bits) {
    const int k = bits - 1;
    if (k == 1) {
        return kMaxBfloat16Bits;
    }
    uint32_t fraction = 0;
    for (int bit = 23 - k; bit >= 16; bit -= k) {
        fraction |= 1u << bit;
    }
    return static_cast<uint32_t>(127 + 128 - k) << 23 | fraction;
}
static_assert(max_scale_bits(8) == 0x7C010000u && max_scale_bits(4) == 0x7E120000u);
static_assert(max_scale_bits(2) == 0x7F7F0000u);

// Small floats of the OCP formats: sign, exponent, fraction, subnormals. e4m3 has no infinity and
// one NaN code, 7F; e5m2 is fp16 without its low byte; e2m1 has finite values
// only. kMaxExponent: of the largest value, 2^kMaxExponent <= kMax. kMaxScaleBits: fp32 bits of the
// largest bf16 s with kMax * s finite, the cap of scales that are not powers of two.
struct Fp8e4m3Format {
    static constexpr int kBits = 8;
    static constexpr int kFractionBits = 3;
    static constexpr int kMaxExponent = 8;
    static constexpr uint32_t kMinNormalBits = 121u << 23;  // 2^-6
    static constexpr uint32_t kMaxBits = 0x43E00000u;       // 448
    static constexpr float kMax = 448.0f;
    static constexpr uint32_t kMaxScaleBits = 0x7B120000u;
};
struct Fp8e5m2Format {
    static constexpr int kBits = 8;
    static constexpr int kFractionBits = 2;
    static constexpr int kMaxExponent = 15;
    static constexpr uint32_t kMinNormalBits = 113u << 23;  // 2^-14
    static constexpr uint32_t kMaxBits = 0x47600000u;       // 57344
    static constexpr float kMax = 57344.0f;
    static constexpr uint32_t kMaxScaleBits = 0x77920000u;
};
struct Fp4e2m1Format {
    static constexpr int kBits = 4;
    static constexpr int kFractionBits = 1;
    static constexpr int kMaxExponent = 2;
    static constexpr uint32_t kMinNormalBits = 127u << 23;  // 1
    static constexpr uint32_t kMaxBits = 0x40C00000u;       // 6
    static constexpr float kMax = 6.0f;
};

// Scales of two levels (nvfp4): an e4m3 value for each block times an fp32 for each group, whose
// product with a largest code is at most kTwoLevelMax times the fp32. That lies between 2^-117, so
// that a scale whose e4m3 is not 0 is at least 2^-126, and the largest bf16 that keeps values
// finite.
inline constexpr float kTwoLevelMax = 448.0f * 6.0f;
inline constexpr uint32_t kMinGroupScaleBits = 10u << 23;
inline constexpr uint32_t kMaxGroupScaleBits = 0x79C30000u;

// The order of a sum of fp64 over a buffer: element i belongs to lane i mod kMeasureLanes, a lane
// adds its elements in their order, then kMeasureThreads neighbouring lanes and after them the
// kMeasureBlocks such groups are added in pairs (the first half and the second half, again and
// again).
inline constexpr int kMeasureThreads = 256;
inline constexpr int kMeasureBlocks = 64;
inline constexpr int64_t kMeasureLanes = int64_t{kMeasureThreads} * kMeasureBlocks;

}  // namespace slimwire
