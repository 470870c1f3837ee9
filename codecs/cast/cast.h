// The family of casts: bf16, fp16. Each element becomes one 16-bit float, nearest even or
// stochastically; finite values beyond the target's range saturate, non-finite ones stay so. Layout
// and numerics: FORMAT.md. cast.cpp has the descriptors, cast.cu the kernels.
#pragma once

#include <array>

#include "codecs/codec.h"
#include "codecs/gpu/launchers.h"
#include "codecs/simd/chunks.h"
#include "codecs/spec.h"

namespace slimwire {

// Everything a member's descriptor needs.
template <DType kTarget, CastKernels CastTable::*kKernels, const char* const* kName>
struct Cast {
    static constexpr CodecParams kDefaults = {.bits = 16, .target = static_cast<uint8_t>(kTarget)};
    static constexpr std::array<const SpecKey*, 1> kKeys = {&spec_key_rounding_stochastic};
    // Chunks of a cast start on whole 64-byte lines of the user's fp32 buffer.
    static constexpr int64_t kGranule = 16;

    static Status parse(std::string_view text, CodecParams* params) {
        return parse_spec_keys(*kName, kKeys, kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(*kName, kKeys, kDefaults, params);
    }
    // The operations take 16-bit floats too, but a cast of those saves nothing.
    static bool accepts(const CodecParams&, DType dtype) { return dtype == DType::kFloat32; }
    static bool stochastic(const CodecParams& params) {
        return params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    }
    // Half the step of fp16's subnormals, or the step; that of bf16 is below fp32's own.
    static CodecTraits traits(const CodecParams& params, DType) {
        const double step = kTarget == DType::kBfloat16 ? 0x1p-133 : 0x1p-24;
        return {.smallest_error = stochastic(params) ? step : step / 2};
    }
    static int64_t encoded_bytes(const CodecParams&, DType, int64_t count) { return 2 * count; }
    static int64_t granule(const CodecParams&, DType) { return kGranule; }
    // Half a unit in the last place of a significand of 8 or 11 bits, or a whole one.
    static double block_error_bound(const CodecParams& params, DType) {
        return (kTarget == DType::kBfloat16 ? 0x1p-8 : 0x1p-11) * (stochastic(params) ? 2 : 1);
    }

    static void encode(const EncodeArgs& args) {
        const auto kernel = (host_table<CastTable>().*kKernels).encode;
        for_each_chunk(args,
                       [&](const EncodeChunk& chunk) { kernel(chunk, stochastic(args.params)); });
    }
    static void decode(const DecodeArgs& args) {
        for_each_chunk(args, (host_table<CastTable>().*kKernels).decode);
    }
    static void reduce(const DecodeReduceEncodeArgs& args) {
        const auto kernel = (host_table<CastTable>().*kKernels).reduce;
        for_each_chunk(args,
                       [&](const ReduceChunk& chunk) { kernel(chunk, stochastic(args.params)); });
    }
    static void sum(const DecodeReduceArgs& args) {
        for_each_chunk(args, (host_table<CastTable>().*kKernels).sum);
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
                .cuda = {CastCuda<kTarget>::encode, CastCuda<kTarget>::decode,
                         CastCuda<kTarget>::reduce, CastCuda<kTarget>::sum}
#else
                .cuda = {nullptr, nullptr, nullptr}
#endif
        };
    }
};

}  // namespace slimwire
