// The family of block integers: int8, int4, int2. A block of `block` elements shares one
// scale; an element is a signed code of kBits bits, value = code * scale. What is quantised may be
// rotated before and rounded stochastically. Layout and numerics: FORMAT.md. int8.cu, int4.cu and
// int2.cu have the kernels.
#include <algorithm>
#include <array>

#include "codecs/block_int/block_int_shape.h"
#include "codecs/block_int/host/table.h"
#include "codecs/launchers.h"
#include "codecs/numeric.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

template <int kBits>
struct BlockIntKernels;

namespace {

constexpr SpecKey kRotate = number_key<&CodecParams::rotate, NumberRange{32, 512, true, true}>(
    "rotate", "0 or a power of two from 32 to 512");
// Which no operation looks at: an exchange gives them the columns of rows (collectives/algorithms).
constexpr SpecKey kRowOfColumns =
    number_key<&CodecParams::row, NumberRange{2, INT32_MAX, false, true}>(
        "row", "0 (blocks along rows) or a whole number from 2 to 2147483647");

// Bound of the error as a part of the largest magnitude of the unit. Half a scale (a whole one for
// stochastic rounding), which is at most largest / Q rounded up to the scale's precision. The last
// factor covers the roundings of the division and of the product with the inverse. A rotation
// multiplies the largest magnitude by `rotate` at most, and its inverse averages the errors; each
// of its at most 20 roundings errs by 2^-24 of what is below rotate * largest.
double error_bound(const CodecParams& params) {
    const BlockIntShape shape = block_int_shape(params);
    const double bound = (shape.stochastic ? 1.0 : 0.5) / largest_code(params.bits) *
                         (shape.scale_bytes == 4 ? 1.0 : 1.0 + 0x1p-7) * (1.0 + 0x1p-16);
    return shape.rotate != 0 ? shape.rotate * (bound + 20 * 0x1p-24) : bound;
}

// Where the scale is the smallest normal fp32.
double smallest_error(const CodecParams& params) {
    const double step = std::max<double>(params.rotate, 1) * 0x1p-126;
    return params.rounding == static_cast<uint8_t>(Rounding::kStochastic) ? step : step / 2;
}

// Everything a member's descriptor needs, from its width, default block and host bodies.
template <int kBits, uint16_t kDefaultBlock, ChunkKernels<BlockIntShape> BlockIntTable::*kBodies>
struct BlockInt
    : BlockCodec<BlockInt<kBits, kDefaultBlock, kBodies>, Launchers<BlockIntKernels<kBits>>> {
    static constexpr const char* kName = kBits == 8 ? "int8" : kBits == 4 ? "int4" : "int2";
    static constexpr CodecParams kDefaults = {.block = kDefaultBlock, .bits = kBits};
    static constexpr std::array<const SpecKey*, 6> kKeys = {
        &spec_key_block, &spec_key_scale, &spec_key_rounding_stochastic,
        &kRotate,        &spec_key_seed,  &kRowOfColumns};

    static BlockIntShape shape(const CodecParams& params) { return block_int_shape(params); }
    static const ChunkKernels<BlockIntShape>& bodies(const CodecParams&) {
        return host_table<BlockIntTable>().*kBodies;
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.needs_feedback =
                    kBits == 2 && params.rounding == static_cast<uint8_t>(Rounding::kNearest),
                .poison_elems = granule(params, dtype),
                .smallest_error = smallest_error(params)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return block_int_layout(shape(params), count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        return std::max(params.block, params.rotate);
    }
    static double block_error_bound(const CodecParams& params, DType) {
        return error_bound(params);
    }
};

// The parameters' part of a grammar line.
#define SLIMWIRE_BLOCK_INT_GRAMMAR(default_block)                                       \
    ":block=16..2048 (power of two, default " default_block                             \
    "),scale=bf16|fp32 (default bf16),rounding=nearest|stochastic (default nearest),"   \
    "rotate=0|32..512 (power of two, default 0),seed=0..4294967295 (of the rotation's " \
    "signs, default 0),row=0|2..2147483647 (blocks along the columns of such rows, default 0)"

}  // namespace

// Blocks of 8-bit integers, largest code 127.
extern const CodecDescriptor codec_int8;
constinit const CodecDescriptor codec_int8 =
    BlockInt<8, 64, &BlockIntTable::int8>::descriptor("int8" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

// Blocks of 4-bit integers, largest code 7.
extern const CodecDescriptor codec_int4;
constinit const CodecDescriptor codec_int4 =
    BlockInt<4, 64, &BlockIntTable::int4>::descriptor("int4" SLIMWIRE_BLOCK_INT_GRAMMAR("64"));

// Blocks of 2-bit integers, largest code 1.
extern const CodecDescriptor codec_int2;
constinit const CodecDescriptor codec_int2 =
    BlockInt<2, 32, &BlockIntTable::int2>::descriptor("int2" SLIMWIRE_BLOCK_INT_GRAMMAR("32"));

}  // namespace slimwire
