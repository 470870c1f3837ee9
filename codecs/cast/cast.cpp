// The family of casts: bf16, fp16. Each element becomes one 16-bit float, nearest even or
// stochastically; non-finite ones stay so, and finite values beyond the target's range saturate, or
// become infinite by fp16. Layout and numerics: FORMAT.md. cast.cu has the kernels.
#include <span>

#include "codecs/cast/host/table.h"
#include "codecs/launchers.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

template <DType kTarget>
struct CastKernels;

namespace {

bool saturates(const CodecParams& params) {
    return params.scale_type == static_cast<uint8_t>(CastOverflow::kSaturate);
}
constexpr SpecWord<CastOverflow> kSaturateWords[] = {{"true", CastOverflow::kSaturate},
                                                     {"false", CastOverflow::kInfinite}};
constexpr SpecKey kSaturateKey =
    word_key<&CodecParams::scale_type, kSaturateWords>("saturate", "true or false");

// Everything a member's descriptor needs.
template <DType kTarget, ChunkKernels<CastShape> CastTable::*kBodies>
struct Cast : BlockCodec<Cast<kTarget, kBodies>, Launchers<CastKernels<kTarget>>> {
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

}  // namespace

// A cast of every element.
extern const CodecDescriptor codec_bf16;
constinit const CodecDescriptor codec_bf16 =
    Cast<DType::kBfloat16, &CastTable::bfloat16>::descriptor(
        "bf16:rounding=nearest|stochastic (default nearest)");

// A cast of every element.
extern const CodecDescriptor codec_fp16;
constinit const CodecDescriptor codec_fp16 = Cast<DType::kFloat16, &CastTable::float16>::descriptor(
    "fp16:rounding=nearest|stochastic (default nearest),saturate=false|true (default false)");

}  // namespace slimwire
