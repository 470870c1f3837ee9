// The family of casts: bf16, fp16. Each element becomes one 16-bit float, nearest even or
// stochastically; non-finite ones stay so, and finite values beyond the target's range saturate, or
// become infinite by fp16. Layout and numerics: FORMAT.md. cast.cpp has the descriptors, cast.cu
// the kernels.
#pragma once

#include <span>
#include <string>

#include "codecs/cast/host/table.h"
#include "codecs/cast/launchers.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

inline bool saturates(const CodecParams& params) {
    return params.scale_type == static_cast<uint8_t>(CastOverflow::kSaturate);
}
inline constexpr SpecKey kSaturateKey = {
    "saturate", "true or false",
    [](std::string_view value, CodecParams* params) {
        const bool known = value == "true" || value == "false";
        if (known) {
            params->scale_type = static_cast<uint8_t>(value == "true" ? CastOverflow::kSaturate
                                                                      : CastOverflow::kInfinite);
        }
        return known;
    },
    [](const CodecParams& params) { return std::string(saturates(params) ? "true" : "false"); }};

// Everything a member's descriptor needs.
template <DType kTarget, ChunkKernels<CastShape> CastTable::*kBodies>
struct Cast : BlockCodec<Cast<kTarget, kBodies>, CastCuda<kTarget>> {
    static constexpr const char* kName = kTarget == DType::kBfloat16 ? "bf16" : "fp16";
    static constexpr CodecParams kDefaults = {.bits = 16, .target = static_cast<uint8_t>(kTarget)};
    static constexpr const SpecKey* kAllKeys[] = {&spec_key_rounding_stochastic, &kSaturateKey};
    static constexpr std::span<const SpecKey* const> kKeys{kAllKeys,
                                                           kTarget == DType::kFloat16 ? 2u : 1u};
    // Chunks of a cast start on whole 64-byte lines of the user's fp32 buffer.
    static constexpr int64_t kGranule = 16;

    // The operations take 16-bit floats too, but a cast of those saves nothing.
    static bool accepts(const CodecParams&, DType dtype) { return dtype == DType::kFloat32; }
    static CastShape shape(const CodecParams& params) {
        return {.stochastic = params.rounding == static_cast<uint8_t>(Rounding::kStochastic),
                .saturates = kTarget == DType::kBfloat16 || saturates(params)};
    }
    static const ChunkKernels<CastShape>& bodies(const CodecParams&) {
        return host_table<CastTable>().*kBodies;
    }
    // Half the step of fp16's subnormals, or the step; that of bf16 is below fp32's own.
    static CodecTraits traits(const CodecParams& params, DType) {
        const double step = kTarget == DType::kBfloat16 ? 0x1p-133 : 0x1p-24;
        return {.smallest_error = shape(params).stochastic ? step : step / 2};
    }
    static int64_t encoded_bytes(const CodecParams&, DType, int64_t count) { return 2 * count; }
    static int64_t granule(const CodecParams&, DType) { return kGranule; }
    // Half a unit in the last place of a significand of 8 or 11 bits, or a whole one.
    static double block_error_bound(const CodecParams& params, DType) {
        return (kTarget == DType::kBfloat16 ? 0x1p-8 : 0x1p-11) *
               (shape(params).stochastic ? 2 : 1);
    }
};

}  // namespace slimwire
