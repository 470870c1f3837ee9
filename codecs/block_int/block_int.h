// The family of block integers: int8, int4, int2. A block of `block` elements shares one
// scale; an element is a signed code of kBits bits, value = code * scale. What is quantised may be
// rotated before and rounded stochastically. Layout and numerics: FORMAT.md. block_int.cpp has
// the descriptors; int8.cu, int4.cu and int2.cu the kernels.
#pragma once

#include <algorithm>
#include <array>

#include "codecs/block_int/block_int_shape.h"
#include "codecs/codec.h"
#include "codecs/gpu/launchers.h"
#include "codecs/numeric.h"
#include "codecs/simd/chunks.h"
#include "codecs/spec.h"

namespace slimwire {

extern const SpecKey spec_key_rotate;

// Bound of the error as a part of the largest magnitude of the unit. Half a scale (a whole one for
// stochastic rounding), which is at most largest / Q rounded up to the scale's precision. The last
// factor covers the roundings of the division and of the product with the inverse. A rotation
// multiplies the largest magnitude by `rotate` at most, and its inverse averages the errors; each
// of its at most 20 roundings errs by 2^-24 of what is below rotate * largest.
[[nodiscard]] double block_int_error_bound(const CodecParams& params, DType);
// Where the scale is the smallest normal fp32.
[[nodiscard]] double block_int_smallest_error(const CodecParams& params);

// Everything a member's descriptor needs, from its width, default block and host kernels.
template <int kBits,
          uint16_t kDefaultBlock,
          BlockIntKernels BlockIntTable::*kKernels,
          const char* const* kName>
struct BlockInt {
    static constexpr CodecParams kDefaults = {.block = kDefaultBlock, .bits = kBits};
    static constexpr std::array<const SpecKey*, 5> kKeys = {&spec_key_block, &spec_key_scale,
                                                            &spec_key_rounding_stochastic,
                                                            &spec_key_rotate, &spec_key_seed};

    static Status parse(std::string_view text, CodecParams* params) {
        return parse_spec_keys(*kName, kKeys, kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(*kName, kKeys, kDefaults, params);
    }
    static bool accepts(const CodecParams&, DType dtype) {
        return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.poison_elems = granule(params, dtype),
                .smallest_error = block_int_smallest_error(params)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return block_int_layout(block_int_shape(params), count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        return std::max(params.block, params.rotate);
    }

    static void encode(const EncodeArgs& args) {
        const auto kernel = (host_table<BlockIntTable>().*kKernels).encode;
        const BlockIntShape shape = block_int_shape(args.params);
        for_each_chunk(args, [&](const EncodeChunk& chunk) { kernel(chunk, shape); });
    }
    static void decode(const DecodeArgs& args) {
        const auto kernel = (host_table<BlockIntTable>().*kKernels).decode;
        const BlockIntShape shape = block_int_shape(args.params);
        for_each_chunk(args, [&](const DecodeChunk& chunk) { kernel(chunk, shape); });
    }
    static void reduce(const DecodeReduceEncodeArgs& args) {
        const auto kernel = (host_table<BlockIntTable>().*kKernels).reduce;
        const BlockIntShape shape = block_int_shape(args.params);
        for_each_chunk(args, [&](const ReduceChunk& chunk) { kernel(chunk, shape); });
    }
    static void sum(const DecodeReduceArgs& args) {
        const auto kernel = (host_table<BlockIntTable>().*kKernels).sum;
        const BlockIntShape shape = block_int_shape(args.params);
        for_each_chunk(args, [&](const ReduceChunk& chunk) { kernel(chunk, shape); });
    }

    static constexpr CodecDescriptor descriptor(const char* grammar) {
        return {.name = *kName,
                .grammar = grammar,
                .parse = parse,
                .print = print,
                .accepts = accepts,
                .traits = traits,
                .encoded_bytes = encoded_bytes,
                .granule = granule,
                .block_error_bound = block_int_error_bound,
                .workspace_bytes = nullptr,
                .check = nullptr,
                .host = {encode, decode, reduce, sum},
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
                .cuda = {BlockIntCuda<kBits>::encode, BlockIntCuda<kBits>::decode,
                         BlockIntCuda<kBits>::reduce, BlockIntCuda<kBits>::sum}
#else
                .cuda = {nullptr, nullptr, nullptr}
#endif
        };
    }
};

// The parameters' part of a grammar line.
#define SLIMWIRE_BLOCK_INT_GRAMMAR(default_block)                                       \
    ":block=16..2048 (power of two, default " default_block                             \
    "),scale=bf16|fp32 (default bf16),rounding=nearest|stochastic (default nearest),"   \
    "rotate=0|32..512 (power of two, default 0),seed=0..4294967295 (of the rotation's " \
    "signs, default 0)"

}  // namespace slimwire
