// The family of quantizers: sign, ternary, natural and qsgd. A code says the sign of an
// element and one of few magnitudes, which a block's fp32 scale gives their size; rounding is
// stochastic by default where there is a choice. Layout and numerics: FORMAT.md, "Quantizer
// quantisers". quantizers.cpp has the descriptors, quantizers.cu the kernels, and
// quantizer_shape.h says what members differ in. Sources: signSGD with mean (Bernstein 2018),
// 1-bit Adam (Tang 2021), TernGrad (Wen 2017), QSGD (Alistarh 2017), natural compression
// (Horvath 2019).
#pragma once

#include <span>

#include "codecs/codec.h"
#include "codecs/gpu/launchers.h"
#include "codecs/quantizers/quantizer_shape.h"
#include "codecs/simd/chunks.h"
#include "codecs/spec.h"

namespace slimwire {

// Keys that members put together their tables of. Blocks of codes of 1 bit have at least 32
// elements, so that scales stand at multiples of 4 bytes.
extern const SpecKey spec_key_block_of_bits;
extern const SpecKey spec_key_scale_of_signs;    // mean or l2
extern const SpecKey spec_key_scale_of_ternary;  // max or clip
extern const SpecKey spec_key_scale_of_levels;   // l2 or max
extern const SpecKey spec_key_levels;            // sets the width too
extern const SpecKey spec_key_bits_of_powers;

// The host bodies of a rule and width, and bounds of the error (codec.h).
[[nodiscard]] const QuantizerKernels& quantizer_kernels(QuantizerRule rule, int bits) noexcept;
[[nodiscard]] double quantizer_error_bound(QuantizerRule rule, const CodecParams& params);

// The launchers of the width that the parameters have.
template <QuantizerRule kRule>
struct QuantizerWidths {
    template <class Run>
    static auto with(int bits, Run run) {
        if constexpr (kRule == QuantizerRule::kSign) {
            return run(QuantizerSign{});
        } else if constexpr (kRule == QuantizerRule::kPowers) {
            return bits == 8 ? run(QuantizerPowers<8>{}) : run(QuantizerPowers<4>{});
        } else {
            return bits == 2   ? run(QuantizerLevels<2>{})
                   : bits == 4 ? run(QuantizerLevels<4>{})
                   : bits == 6 ? run(QuantizerLevels<6>{})
                               : run(QuantizerLevels<8>{});
        }
    }
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        return with(args.params.bits,
                    [&](auto kind) { return QuantizerCuda<decltype(kind)>::encode(args, stream); });
    }
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        return with(args.params.bits,
                    [&](auto kind) { return QuantizerCuda<decltype(kind)>::decode(args, stream); });
    }
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        return with(args.params.bits,
                    [&](auto kind) { return QuantizerCuda<decltype(kind)>::reduce(args, stream); });
    }
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        return with(args.params.bits,
                    [&](auto kind) { return QuantizerCuda<decltype(kind)>::sum(args, stream); });
    }
};

// Everything a member's descriptor needs. Member: a struct with kName, kDefaults and kKeys.
template <QuantizerRule kRule, class Member>
struct Quantizer {
    static Status parse(std::string_view text, CodecParams* params) {
        return parse_spec_keys(Member::kName, Member::kKeys, Member::kDefaults, text, params);
    }
    static std::string print(const CodecParams& params) {
        return print_spec_keys(Member::kName, Member::kKeys, Member::kDefaults, params);
    }
    static bool accepts(const CodecParams&, DType dtype) {
        return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.poison_elems = granule(params, dtype), .smallest_error = 0x1p-126};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return QuantizerWidths<kRule>::with(params.bits, [&](auto kind) {
            return quantizer_layout<decltype(kind)>(quantizer_shape(params), count).bytes;
        });
    }
    static int64_t granule(const CodecParams& params, DType) { return params.block; }
    static double error_bound(const CodecParams& params, DType) {
        return quantizer_error_bound(kRule, params);
    }

    static void encode(const EncodeArgs& args) {
        const auto kernel = quantizer_kernels(kRule, args.params.bits).encode;
        const QuantizerShape shape = quantizer_shape(args.params);
        for_each_chunk(args, [&](const EncodeChunk& chunk) { kernel(chunk, shape); });
    }
    static void decode(const DecodeArgs& args) {
        const auto kernel = quantizer_kernels(kRule, args.params.bits).decode;
        const QuantizerShape shape = quantizer_shape(args.params);
        for_each_chunk(args, [&](const DecodeChunk& chunk) { kernel(chunk, shape); });
    }
    static void reduce(const DecodeReduceEncodeArgs& args) {
        const auto kernel = quantizer_kernels(kRule, args.params.bits).reduce;
        const QuantizerShape shape = quantizer_shape(args.params);
        for_each_chunk(args, [&](const ReduceChunk& chunk) { kernel(chunk, shape); });
    }
    static void sum(const DecodeReduceArgs& args) {
        const auto kernel = quantizer_kernels(kRule, args.params.bits).sum;
        const QuantizerShape shape = quantizer_shape(args.params);
        for_each_chunk(args, [&](const ReduceChunk& chunk) { kernel(chunk, shape); });
    }

    static constexpr CodecDescriptor descriptor(const char* grammar) {
        return {.name = Member::kName,
                .grammar = grammar,
                .parse = parse,
                .print = print,
                .accepts = accepts,
                .traits = traits,
                .encoded_bytes = encoded_bytes,
                .granule = granule,
                .block_error_bound = error_bound,
                .workspace_bytes = nullptr,
                .check = nullptr,
                .host = {encode, decode, reduce, sum},
#ifdef SLIMWIRE_HAVE_CUDA_KERNELS
                .cuda = {QuantizerWidths<kRule>::encode, QuantizerWidths<kRule>::decode,
                         QuantizerWidths<kRule>::reduce, QuantizerWidths<kRule>::sum}
#else
                .cuda = {nullptr, nullptr, nullptr}
#endif
        };
    }
};

}  // namespace slimwire
