// A second, slow implementation of codecs/FORMAT.md, written from the page and not from the code:
// real arithmetic in double, rounding by nearbyint, bits moved one at a time. The codecs must equal
// it to the byte. Used by the tests of this folder only.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "codecs/codec.h"
#include "codecs/threefry.h"

namespace slimwire::reference {

// A float format by its numbers: significand bits, smallest normal exponent, largest finite value.
struct Format {
    int precision;
    int min_exponent;
    double max_finite;
};
inline constexpr Format kFloat16{11, -14, 65504.0};
inline constexpr Format kBfloat16{8, -126, 0x1.FEp127};
inline constexpr Format kFloat8e4m3{4, -6, 448.0};
inline constexpr Format kFloat8e5m2{3, -14, 57344.0};

// Nearest value of the format, ties to even; infinity beyond; NaN stays NaN.
double round_to(const Format& format, double value);
// Stochastic rounding of a finite value with the drawn byte.
double round_up_or_down(const Format& format, double value, int byte);
// Value of bits and bits of a value of the format; NaN gets the canonical bits.
double from_bits(const Format& format, uint16_t bits);
uint16_t to_bits(const Format& format, double value);

// `width` bits from bit `at` on, the lowest first; put into bits that are zero.
void put_bits(uint8_t* bytes, int64_t at, int width, uint32_t value);
uint32_t get_bits(const uint8_t* bytes, int64_t at, int width);
inline float float_of(uint32_t bits) {
    return std::bit_cast<float>(bits);
}
// A scale as fp32 bits, NaN canonical.
uint32_t scale_word(double scale);
// The scale of a block, whose largest magnitude becomes at most `most`: fp32, or with two bytes the
// bf16 above; 0 of zeros, NaN of what is not finite.
double block_scale(double largest, double most, int bytes);

// Element i of a buffer, and writing it (rounded to the type, NaN canonical).
float element(const void* buffer, DType dtype, int64_t i);
void set_element(void* buffer, DType dtype, int64_t i, float value);

// Decoded values as the rules for all codecs keep them within the user's type.
std::vector<float> within(DType dtype, std::vector<float> values);

// What an encoding draws: the operation's key, its purpose, the number of the chunk. The tests'
// operations use this key unless they say otherwise.
inline constexpr RandomKey kKey = {.seed = 0x5EED, .tensor = 7, .rank = 3, .step = 0xFFFFFFF0u};
struct Draw {
    RandomKey key = kKey;
    RandomPurpose purpose = RandomPurpose::kEncode;
    uint32_t chunk = 0;
};
// The byte that value i of a chunk draws.
int random_byte(const Draw& draw, int64_t i);

// The encoding of p as elements of `dtype`, and the fp32 values it decodes to. Empty, and no values
// where there are some, for a codec that is not in the table of reference.cpp.
bool knows(const CodecSpec& spec);
std::optional<std::vector<uint8_t>> encode(const CodecSpec& spec,
                                           const std::vector<float>& p,
                                           const Draw& draw = {},
                                           DType dtype = DType::kFloat32);
std::vector<float> decode(const CodecSpec& spec,
                          const uint8_t* bytes,
                          int64_t count,
                          DType dtype = DType::kFloat32);

// A codec's own part: one encoding of p.size() > 0 elements. In reference_<family>.cpp.
struct Family {
    const char* codec;
    std::vector<uint8_t> (*encode)(const CodecSpec& spec,
                                   const std::vector<float>& p,
                                   const Draw& draw,
                                   DType dtype);
    std::vector<float> (*decode)(const CodecSpec& spec,
                                 const uint8_t* bytes,
                                 int64_t count,
                                 DType dtype);
};
std::vector<uint8_t> encode_cast(const CodecSpec&, const std::vector<float>&, const Draw&, DType);
std::vector<float> decode_cast(const CodecSpec&, const uint8_t*, int64_t, DType);
std::vector<uint8_t> encode_block_float(const CodecSpec&,
                                        const std::vector<float>&,
                                        const Draw&,
                                        DType);
std::vector<float> decode_block_float(const CodecSpec&, const uint8_t*, int64_t, DType);
std::vector<uint8_t> encode_quantizer(const CodecSpec&,
                                      const std::vector<float>&,
                                      const Draw&,
                                      DType);
std::vector<float> decode_quantizer(const CodecSpec&, const uint8_t*, int64_t, DType);
std::vector<uint8_t> encode_bounded(const CodecSpec&,
                                    const std::vector<float>&,
                                    const Draw&,
                                    DType);
std::vector<float> decode_bounded(const CodecSpec&, const uint8_t*, int64_t, DType);
std::vector<uint8_t> encode_block_int(const CodecSpec&,
                                      const std::vector<float>&,
                                      const Draw&,
                                      DType);
std::vector<float> decode_block_int(const CodecSpec&, const uint8_t*, int64_t, DType);

// One decode-reduce-encode of block integers, which rotated members define apart from the sequence
// of operations: sums `sources` and encodes factor * sum + residual; the residual is rewritten.
std::vector<uint8_t> reduce_block_int(const CodecSpec& spec,
                                      const std::vector<const uint8_t*>& sources,
                                      int64_t count,
                                      float factor,
                                      std::vector<float>* residual,
                                      const Draw& draw,
                                      DType dtype);
// Their sum as decode_reduce forms it, before the factor.
std::vector<float> sum_block_int(const CodecSpec& spec,
                                 const std::vector<const uint8_t*>& sources,
                                 int64_t count,
                                 DType dtype);

std::vector<uint8_t> encode_sparse(const CodecSpec&, const std::vector<float>&, const Draw&, DType);
std::vector<float> decode_sparse(const CodecSpec&, const uint8_t*, int64_t, DType);

}  // namespace slimwire::reference
