// The family of quantizers: sign, ternary, natural and qsgd. A code says the sign of an
// element and one of few magnitudes, which a block's fp32 scale gives their size; rounding is
// stochastic by default where there is a choice. Layout and numerics: FORMAT.md, "Quantizer
// quantisers". quantizers.cpp has the descriptors, quantizers.cu the kernels, and
// quantizer_shape.h says what members differ in. Sources: signSGD with mean (Bernstein 2018),
// 1-bit Adam (Tang 2021), TernGrad (Wen 2017), QSGD (Alistarh 2017), natural compression
// (Horvath 2019).
#pragma once

#include "codecs/quantizers/host/table.h"
#include "codecs/quantizers/launchers.h"
#include "codecs/quantizers/quantizer_shape.h"
#include "codecs/simd/block_codec.h"

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
[[nodiscard]] const ChunkKernels<QuantizerShape>& quantizer_bodies(QuantizerRule rule,
                                                                   int bits) noexcept;
[[nodiscard]] double quantizer_error_bound(QuantizerRule rule, const CodecParams& params);

// Everything a member's descriptor needs. Words: a struct with kName, kDefaults and kKeys.
template <QuantizerRule kRule, class Words>
struct Quantizer : BlockCodec<Quantizer<kRule, Words>, QuantizerCuda<kRule>> {
    static constexpr const char* kName = Words::kName;
    static constexpr CodecParams kDefaults = Words::kDefaults;
    static constexpr auto kKeys = Words::kKeys;

    static QuantizerShape shape(const CodecParams& params) { return quantizer_shape(params); }
    static const ChunkKernels<QuantizerShape>& bodies(const CodecParams& params) {
        return quantizer_bodies(kRule, params.bits);
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.needs_feedback = params.rounding == static_cast<uint8_t>(Rounding::kNearest) &&
                                  block_error_bound(params, dtype) >= 0.5,
                .poison_elems = granule(params, dtype),
                .smallest_error = 0x1p-126};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return with_quantizer_kind<kRule>(params.bits, [&](auto kind) {
            return quantizer_layout<decltype(kind)>(shape(params), count).bytes;
        });
    }
    static int64_t granule(const CodecParams& params, DType) { return params.block; }
    static double block_error_bound(const CodecParams& params, DType) {
        return quantizer_error_bound(kRule, params);
    }
};

}  // namespace slimwire
