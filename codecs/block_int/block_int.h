// The family of block integers: int8, int4, int2. A block of `block` elements shares one
// scale; an element is a signed code of kBits bits, value = code * scale. What is quantised may be
// rotated before and rounded stochastically. Layout and numerics: FORMAT.md. block_int.cpp has
// the descriptors; int8.cu, int4.cu and int2.cu the kernels.
#pragma once

#include <algorithm>
#include <array>

#include "codecs/block_int/block_int_shape.h"
#include "codecs/block_int/host/table.h"
#include "codecs/block_int/launchers.h"
#include "codecs/numeric.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

extern const SpecKey spec_key_rotate;
// Which no operation looks at: an exchange gives them the columns of rows (collectives/algorithms).
extern const SpecKey spec_key_row_of_columns;

// Bound of the error as a part of the largest magnitude of the unit. Half a scale (a whole one for
// stochastic rounding), which is at most largest / Q rounded up to the scale's precision. The last
// factor covers the roundings of the division and of the product with the inverse. A rotation
// multiplies the largest magnitude by `rotate` at most, and its inverse averages the errors; each
// of its at most 20 roundings errs by 2^-24 of what is below rotate * largest.
[[nodiscard]] double block_int_error_bound(const CodecParams& params, DType);
// Where the scale is the smallest normal fp32.
[[nodiscard]] double block_int_smallest_error(const CodecParams& params);

// Everything a member's descriptor needs, from its width, default block and host bodies.
template <int kBits, uint16_t kDefaultBlock, ChunkKernels<BlockIntShape> BlockIntTable::*kBodies>
struct BlockInt : BlockCodec<BlockInt<kBits, kDefaultBlock, kBodies>, BlockIntCuda<kBits>> {
    static constexpr const char* kName = kBits == 8 ? "int8" : kBits == 4 ? "int4" : "int2";
    static constexpr CodecParams kDefaults = {.block = kDefaultBlock, .bits = kBits};
    static constexpr std::array<const SpecKey*, 6> kKeys = {
        &spec_key_block,  &spec_key_scale, &spec_key_rounding_stochastic,
        &spec_key_rotate, &spec_key_seed,  &spec_key_row_of_columns};

    static BlockIntShape shape(const CodecParams& params) { return block_int_shape(params); }
    static const ChunkKernels<BlockIntShape>& bodies(const CodecParams&) {
        return host_table<BlockIntTable>().*kBodies;
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.needs_feedback =
                    kBits == 2 && params.rounding == static_cast<uint8_t>(Rounding::kNearest),
                .poison_elems = granule(params, dtype),
                .smallest_error = block_int_smallest_error(params)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return block_int_layout(shape(params), count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        return std::max(params.block, params.rotate);
    }
    static double block_error_bound(const CodecParams& params, DType dtype) {
        return block_int_error_bound(params, dtype);
    }
};

// The parameters' part of a grammar line.
#define SLIMWIRE_BLOCK_INT_GRAMMAR(default_block)                                       \
    ":block=16..2048 (power of two, default " default_block                             \
    "),scale=bf16|fp32 (default bf16),rounding=nearest|stochastic (default nearest),"   \
    "rotate=0|32..512 (power of two, default 0),seed=0..4294967295 (of the rotation's " \
    "signs, default 0),row=0|2..2147483647 (blocks along the columns of such rows, default 0)"

}  // namespace slimwire
