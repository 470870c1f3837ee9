// The family of block floats: fp8e4m3, fp8e5m2. A block of `block` elements shares one scale; an
// element is an 8-bit float, value = float * scale. Layout and numerics: FORMAT.md. Each member is
// one .cpp (descriptor) and one .cu (kernels), both instantiating this family.
#pragma once

#include <array>
#include <type_traits>

#include "codecs/codec.h"
#include "codecs/cuda/launchers.h"
#include "codecs/host/chunks.h"
#include "codecs/numeric.h"
#include "codecs/spec.h"

namespace slimwire {

// Everything a member's descriptor needs.
template <DType kTarget, Fp8Kernels Fp8Table::*kKernels, const char* const* kName>
struct BlockFloat {
    using Format = std::conditional_t<kTarget == DType::kFloat8e4m3, Fp8e4m3Format, Fp8e5m2Format>;
    // The error hardly depends on the block (its step is relative), so the block only has to be
    // large enough for a scale of 16 bits to cost little: 8.25 bits, as int8.
    static constexpr CodecParams kDefaults = {
        .block = 64, .bits = 8, .target = static_cast<uint8_t>(kTarget)};
    static constexpr std::array<const SpecKey*, 3> kKeys = {&spec_key_block, &spec_key_scale,
                                                            &spec_key_rounding_stochastic};

    static Status parse(std::string_view text, CodecParams* params) {
        return parse_spec_keys(*kName, kKeys, kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(*kName, kKeys, kDefaults, params);
    }
    static BlockFloatShape shape(const CodecParams& params) {
        return {params.block, params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32),
                params.rounding == static_cast<uint8_t>(Rounding::kStochastic)};
    }
    static bool accepts(const CodecParams&, DType dtype) {
        return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    }
    // Where a scale was raised to 2^-126, the step between the largest values is this, or half of
    // it.
    static CodecTraits traits(const CodecParams& params, DType) {
        const double step = kTarget == DType::kFloat8e4m3 ? 0x1p-121 : 0x1p-113;
        return {.poison_elems = params.block,
                .smallest_error = shape(params).stochastic ? step : step / 2};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        const int64_t blocks = (count + params.block - 1) / params.block;
        return blocks * (params.block + (shape(params).scale_is_float32 ? 4 : 2));
    }
    static int64_t granule(const CodecParams& params, DType) { return params.block; }

    // Half the step between the largest values, or the step, in units of the largest; the factors
    // are those of a scale that is rounded up.
    static double block_error_bound(const CodecParams& params, DType) {
        const double half_step = 0.5 / 7 / (1 << (Format::kFractionBits - 2));
        return half_step * (shape(params).stochastic ? 2 : 1) *
               (shape(params).scale_is_float32 ? 1.0 : 1.0 + 0x1p-7) * (1.0 + 0x1p-16);
    }

    static void encode(const EncodeArgs& args) {
        const auto kernel = (host_table<Fp8Table>().*kKernels).encode;
        for_each_chunk(args, [&](const EncodeChunk& chunk) { kernel(chunk, shape(args.params)); });
    }
    static void decode(const DecodeArgs& args) {
        const auto kernel = (host_table<Fp8Table>().*kKernels).decode;
        for_each_chunk(args, [&](const DecodeChunk& chunk) { kernel(chunk, shape(args.params)); });
    }
    static void reduce(const DecodeReduceEncodeArgs& args) {
        const auto kernel = (host_table<Fp8Table>().*kKernels).reduce;
        for_each_chunk(args, [&](const ReduceChunk& chunk) { kernel(chunk, shape(args.params)); });
    }
    static void sum(const DecodeReduceArgs& args) {
        const auto kernel = (host_table<Fp8Table>().*kKernels).sum;
        for_each_chunk(args, [&](const ReduceChunk& chunk) { kernel(chunk, shape(args.params)); });
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
                .host = {encode, decode, reduce, sum},
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
                .cuda = {Fp8Cuda<kTarget>::encode, Fp8Cuda<kTarget>::decode,
                         Fp8Cuda<kTarget>::reduce, Fp8Cuda<kTarget>::sum}
#else
                .cuda = {nullptr, nullptr, nullptr}
#endif
        };
    }
};

}  // namespace slimwire
