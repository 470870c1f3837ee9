// The two 16-bit float formats, one value at a time, exact both ways. For code outside the hot
// loops (arguments read once, tools, tests); the lanes in codecs/host convert sixteen at a time.
#pragma once

#include <bit>
#include <cstdint>

#include "codecs/numeric.h"

namespace slimwire {

[[nodiscard]] constexpr float bfloat16_to_float(uint16_t half) noexcept {
    return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Nearest, ties to even; overflow to infinity; NaN canonical.
[[nodiscard]] constexpr uint16_t float_to_bfloat16(float value) noexcept {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & kMagnitudeMask) > kInfinityBits) {
        return kNanBfloat16;
    }
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

[[nodiscard]] constexpr float float16_to_float(uint16_t half) noexcept {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
    if (magnitude >= 31u << 23) {
        return std::bit_cast<float>(sign | magnitude | kInfinityBits);
    }
    if (magnitude >= 1u << 23) {
        return std::bit_cast<float>(sign | (magnitude + (112u << 23)));
    }
    const float small = static_cast<float>(half & 0x3FF) * 0x1p-24f;
    return sign != 0 ? -small : small;
}

// Nearest, ties to even; overflow to infinity; NaN canonical.
[[nodiscard]] constexpr uint16_t float_to_float16(float value) noexcept {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & kMagnitudeMask;
    const uint32_t sign = (bits >> 16) & 0x8000;
    if (magnitude > kInfinityBits) {
        return kNanFloat16;
    }
    if (magnitude >= 0x477FF000u) {  // 65520, halfway beyond the largest
        return static_cast<uint16_t>(sign | 0x7C00);
    }
    if (magnitude < 113u << 23) {  // the sum has units of 2^-24, those of a subnormal
        const float sum = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - (126u << 23)));
    }
    const uint32_t rounded = magnitude - (112u << 23) + 0xFFF + ((magnitude >> 13) & 1);
    return static_cast<uint16_t>(sign | rounded >> 13);
}

}  // namespace slimwire
