// Arithmetic of stored residuals (load_store.h), one value at a time, for host bodies and kernels:
// plain operations that round once each, nothing contracted. FORMAT.md, "Stored residuals".
// Read by objects of any instruction set and by kernels: nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#include "codecs/numeric.h"
#include "codecs/threefry.h"

namespace slimwire {

inline constexpr uint32_t kMaxResidualScaleBits = max_scale_bits(8);

SLIMWIRE_EVERYWHERE uint32_t bits_of_float(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
SLIMWIRE_EVERYWHERE float float_of_bits(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
SLIMWIRE_EVERYWHERE uint32_t residual_magnitude(float x) {
    return bits_of_float(x) & kMagnitudeMask;
}

// keep * old + take * left. What an encoder left alone, because a value was not finite, stays; so
// does what would become non-finite.
SLIMWIRE_EVERYWHERE float next_residual(float old, float left, float keep, float take) {
    const float kept = keep * old;
    const float taken = take * left;
    const float next = kept + taken;
    return bits_of_float(old) == bits_of_float(left) || residual_magnitude(next) >= kInfinityBits
               ? old
               : next;
}

// `drawn`: twice a random byte, plus 1.
SLIMWIRE_EVERYWHERE uint16_t bfloat16_residual(float x, uint32_t drawn) {
    const uint32_t magnitude = residual_magnitude(x);
    const uint32_t sign = bits_of_float(x) & ~kMagnitudeMask;
    const uint32_t rounded = (magnitude + (drawn << 7)) & 0xFFFF0000u;
    const uint32_t finite = rounded < kMaxBfloat16Bits ? rounded : kMaxBfloat16Bits;
    return static_cast<uint16_t>((sign | finite) >> 16);
}
SLIMWIRE_EVERYWHERE float of_bfloat16_residual(uint16_t stored) {
    return float_of_bits(static_cast<uint32_t>(stored) << 16);
}

// The bf16 scale of a block whose largest magnitude has these bits.
SLIMWIRE_EVERYWHERE uint16_t residual_scale(uint32_t largest_bits) {
    if (largest_bits == 0) {
        return 0;
    }
    uint32_t bits = bits_of_float(float_of_bits(largest_bits) / 127.0f);
    bits = (bits + 0xFFFFu) & 0xFFFF0000u;
    bits = bits < kMinScaleBits ? kMinScaleBits : bits;
    bits = bits > kMaxResidualScaleBits ? kMaxResidualScaleBits : bits;
    return static_cast<uint16_t>(bits >> 16);
}
SLIMWIRE_EVERYWHERE int8_t residual_code(float x, uint16_t scale, uint32_t drawn) {
    if (scale == 0) {
        return 0;
    }
    const float quotient = x / of_bfloat16_residual(scale);
    const float moved = quotient + static_cast<float>(drawn) * 0x1p-9f;
    int32_t code = static_cast<int32_t>(moved);
    code -= moved < static_cast<float>(code) ? 1 : 0;
    code = code < -127 ? -127 : code;
    return static_cast<int8_t>(code > 127 ? 127 : code);
}
SLIMWIRE_EVERYWHERE float of_residual_code(int8_t code, uint16_t scale) {
    return static_cast<float>(code) * of_bfloat16_residual(scale);
}

// What is stored, in other units: nearest, of bf16 ties away from zero.
SLIMWIRE_EVERYWHERE float rescaled_residual(float x, float factor) {
    const float y = x * factor;
    return residual_magnitude(y) < kInfinityBits
               ? y
               : float_of_bits((bits_of_float(x) & ~kMagnitudeMask) | (kInfinityBits - 1));
}
SLIMWIRE_EVERYWHERE uint16_t rescaled_bfloat16_residual(uint16_t stored, float factor) {
    return bfloat16_residual(rescaled_residual(of_bfloat16_residual(stored), factor), 1u << 8);
}
// Of a block of int8.
SLIMWIRE_EVERYWHERE uint16_t rescaled_residual_scale(uint16_t scale, float factor) {
    if (scale == 0) {
        return 0;
    }
    uint32_t bits = bits_of_float(rescaled_residual(of_bfloat16_residual(scale), factor));
    bits = (bits + 0x8000u) & 0xFFFF0000u;
    bits = bits < kMinScaleBits ? kMinScaleBits : bits;
    bits = bits > kMaxResidualScaleBits ? kMaxResidualScaleBits : bits;
    return static_cast<uint16_t>(bits >> 16);
}

}  // namespace slimwire
