// The family of block integers: int8, int4, int2. A block of `block` elements shares one scale; an
// element is a signed code of kBits bits, value = code * scale. Layout and numerics: FORMAT.md.
// Each member is one .cpp (descriptor) and one .cu (kernels), both instantiating this family.
#pragma once

#include <array>

#include "codecs/codec.h"
#include "codecs/cuda/launchers.h"
#include "codecs/host/chunks.h"
#include "codecs/numeric.h"
#include "codecs/spec.h"

namespace slimwire {

struct BlockIntLayout {
    int64_t blocks;
    int64_t codes_bytes;  // the scales follow the codes
    int64_t bytes;
};

[[nodiscard]] constexpr BlockIntLayout block_int_layout(int bits,
                                                        uint16_t block,
                                                        ScaleType scale_type,
                                                        int64_t count) {
    const int64_t blocks = (count + block - 1) / block;
    const int64_t codes_bytes = blocks * (int64_t{block} * bits / 8);
    return {blocks, codes_bytes,
            codes_bytes + blocks * (scale_type == ScaleType::kFloat32 ? 4 : 2)};
}

[[nodiscard]] inline BlockIntShape block_int_shape(const CodecParams& params) {
    return {params.block, params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32)};
}

// Everything a member's descriptor needs, from its width, default block and host kernels.
template <int kBits,
          uint16_t kDefaultBlock,
          BlockIntKernels BlockIntTable::*kKernels,
          const char* const* kName>
struct BlockInt {
    static constexpr CodecParams kDefaults = {.block = kDefaultBlock, .bits = kBits};
    static constexpr std::array<const SpecKey*, 3> kKeys = {&spec_key_block, &spec_key_scale,
                                                            &spec_key_rounding};

    static Status parse(std::string_view text, CodecParams* params) {
        return parse_spec_keys(*kName, kKeys, kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(*kName, kKeys, kDefaults, params);
    }
    static bool accepts(const CodecParams&, DType dtype) {
        return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    }
    static CodecTraits traits(const CodecParams& params, DType) {
        return {.poison_elems = params.block};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return block_int_layout(kBits, params.block, static_cast<ScaleType>(params.scale_type),
                                count)
            .bytes;
    }
    static int64_t granule(const CodecParams& params, DType) { return params.block; }

    // Half a scale, which is at most largest / Q, rounded up to the scale's precision; the last
    // factor covers the roundings of the division and of the product with the inverse.
    static double block_error_bound(const CodecParams& params, DType) {
        const bool float32 = params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32);
        return 0.5 / largest_code(kBits) * (float32 ? 1.0 : 1.0 + 0x1p-7) * (1.0 + 0x1p-16);
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

    static constexpr CodecDescriptor descriptor(const char* grammar) {
        return {.name = *kName,
                .grammar = grammar,
                .parse = parse,
                .print = print,
                .accepts = accepts,
                .traits = traits,
                .encoded_bytes = encoded_bytes,
                .granule = granule,
                .block_error_bound = block_error_bound,
                .workspace_bytes = nullptr,
                .check = nullptr,
                .host = {encode, decode, reduce},
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
                .cuda = {BlockIntCuda<kBits>::encode, BlockIntCuda<kBits>::decode,
                         BlockIntCuda<kBits>::reduce}
#else
                .cuda = {nullptr, nullptr, nullptr}
#endif
        };
    }
};

}  // namespace slimwire
