// A second, slow implementation of codecs/FORMAT.md, written from the page and not from the code:
// real arithmetic in double, rounding by nearbyint, bits moved one at a time. The codecs must equal
// it to the byte. Used by the tests of this folder only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codecs/codec.h"

namespace slimwire::reference {

// A float format by its numbers: significand bits, smallest normal exponent, largest finite value.
struct Format {
    int precision;
    int min_exponent;
    double max_finite;
};
inline constexpr Format kFloat16{11, -14, 65504.0};
inline constexpr Format kBfloat16{8, -126, 0x1.FEp127};

// Nearest value of the format, ties to even; infinity beyond; NaN stays NaN.
double round_to(const Format& format, double value);
// Value of bits and bits of a value of the format; NaN gets the canonical bits.
double from_bits(const Format& format, uint16_t bits);
uint16_t to_bits(const Format& format, double value);

// Element i of a buffer, and writing it (rounded to the type, NaN canonical).
float element(const void* buffer, DType dtype, int64_t i);
void set_element(void* buffer, DType dtype, int64_t i, float value);

// The encoding of p, and the fp32 values it decodes to. Empty for a family it does not know.
std::optional<std::vector<uint8_t>> encode(const CodecSpec& spec, const std::vector<float>& p);
std::vector<float> decode(const CodecSpec& spec, const uint8_t* bytes, int64_t count);

}  // namespace slimwire::reference
