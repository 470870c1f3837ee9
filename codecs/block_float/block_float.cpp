// The family of block floats: fp8e4m3, fp8e5m2, mxfp4 and nvfp4. The elements of a block
// share one scale; an element is a float of 8 or 4 bits, value = float * scale. Layout and
// numerics: FORMAT.md. block_float.cu has the kernels, and block_float_shape.h says what members
// differ in.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "codecs/block_float/block_float_shape.h"
#include "codecs/block_float/host/table.h"
#include "codecs/launchers.h"
#include "codecs/numeric.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

template <class Kind>
struct BlockFloatKernels;

namespace {

constexpr uint8_t kUpRule = static_cast<uint8_t>(ScaleRule::kUp);

constexpr SpecWord<ScaleRule> kPowerOfTwoRules[] = {{"floor", ScaleRule::kStandard},
                                                    {"ceil", ScaleRule::kUp}};
constexpr SpecWord<ScaleRule> kTwoLevelRules[] = {{"nearest", ScaleRule::kStandard},
                                                  {"ceil", ScaleRule::kUp}};
constexpr SpecKey kScaleOfPowers =
    word_key<&CodecParams::scale_type, kPowerOfTwoRules>("scale", "floor or ceil");
constexpr SpecKey kScaleOfTwoLevels =
    word_key<&CodecParams::scale_type, kTwoLevelRules>("scale", "nearest or ceil");

// Keys of a member, by its scale.
template <BlockScale kScale>
constexpr std::array<const SpecKey*, 2> kBlockFloatKeys = {
    kScale == BlockScale::kPowerOfTwo ? &kScaleOfPowers : &kScaleOfTwoLevels,
    &spec_key_rounding_stochastic};
template <>
constexpr std::array<const SpecKey*, 3> kBlockFloatKeys<BlockScale::kBinary> = {
    &spec_key_block, &spec_key_scale, &spec_key_rounding_stochastic};

// Parses them; stochastic rounding needs scales that cut nothing off.
Status parse_block_float(const char* codec,
                         std::span<const SpecKey* const> keys,
                         const CodecParams& defaults,
                         std::string_view text,
                         CodecParams* params) {
    CodecParams result;
    SLIMWIRE_TRY(parse_spec_keys(codec, keys, defaults, text, &result));
    if (keys[0] != &spec_key_block && result.scale_type != kUpRule &&
        result.rounding == static_cast<uint8_t>(Rounding::kStochastic)) {
        return {Code::kInvalidArgument,
                "codec " + std::string(codec) +
                    ": rounding=stochastic needs scale=ceil; another scale cuts the largest "
                    "elements of a block off, which is a bias"};
    }
    *params = result;
    return {};
}

// Everything a member's descriptor needs.
template <class Kind,
          uint16_t kDefaultBlock,
          ChunkKernels<BlockFloatShape> BlockFloatTable::*kBodies,
          const char* const* kNameOf>
struct BlockFloat : BlockCodec<BlockFloat<Kind, kDefaultBlock, kBodies, kNameOf>,
                               Launchers<BlockFloatKernels<Kind>>> {
    using Format = typename Kind::Format;
    static constexpr const char* kName = *kNameOf;
    static constexpr CodecParams kDefaults = {.block = kDefaultBlock, .bits = Kind::kBits};
    static constexpr const auto& kKeys = kBlockFloatKeys<Kind::kScale>;

    static Status parse(std::string_view text, CodecParams* params) {
        return parse_block_float(kName, kKeys, kDefaults, text, params);
    }
    static BlockFloatShape shape(const CodecParams& params) {
        return block_float_shape<Kind>(params);
    }
    static const ChunkKernels<BlockFloatShape>& bodies(const CodecParams&) {
        return host_table<BlockFloatTable>().*kBodies;
    }
    static CodecTraits traits(const CodecParams& params, DType dtype) {
        return {.poison_elems = granule(params, dtype),
                .smallest_error = smallest_error(shape(params).stochastic)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType, int64_t count) {
        return block_float_layout<Kind>(shape(params), count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        return Kind::kScale == BlockScale::kTwoLevels ? kScaleGroup : params.block;
    }

    // As a part of the largest magnitude of the unit: half the step between the largest values, or
    // the step, with the scale as large as it is rounded to; or what a standard scale cuts off.
    static double block_error_bound(const CodecParams& params, DType) {
        const BlockFloatShape s = shape(params);
        const double steps = s.stochastic ? 1.0 : 0.5;
        const double largest_step = std::ldexp(1.0, Format::kMaxExponent - Format::kFractionBits);
        if constexpr (Kind::kScale == BlockScale::kBinary) {
            return steps * largest_step / double{Format::kMax} *
                   (s.scale_bytes == 4 ? 1.0 : 1.0 + 0x1p-7) * (1.0 + 0x1p-16);
        } else if constexpr (Kind::kScale == BlockScale::kPowerOfTwo) {
            const double rounding = steps * std::ldexp(1.0, -Format::kFractionBits);
            const double cut = 1.0 - double{Format::kMax} / std::ldexp(2.0, Format::kMaxExponent);
            return s.scale_up ? rounding : std::max(rounding, cut);
        } else {  // e4m3 rounds by 1/16, or up by 1/8
            return steps * largest_step / double{Format::kMax} *
                   (s.scale_up ? 1.0 + 1.0 / 8 : 1.0 + 1.0 / 16) * (1.0 + 0x1p-16);
        }
    }

  private:
    // Where the scale is the smallest there is: the step between the largest values, or half of it;
    // for a power of two, which codes reach below, the smallest step; for two levels, what a block
    // may lose under the smallest fp32.
    static double smallest_error(bool stochastic) {
        const double steps = stochastic ? 1.0 : 0.5;
        if constexpr (Kind::kScale == BlockScale::kBinary) {
            return steps * std::ldexp(1.0, Format::kMaxExponent - Format::kFractionBits - 126);
        } else if constexpr (Kind::kScale == BlockScale::kPowerOfTwo) {
            const int normal = static_cast<int>(Format::kMinNormalBits >> 23) - 127;
            return steps * std::ldexp(1.0, normal - Format::kFractionBits - 127);
        } else {
            return 0x1p-124;
        }
    }
};

// The parameters' part of a grammar line.
#define SLIMWIRE_FP8_GRAMMAR                                                     \
    ":block=16..2048 (power of two, default 64),scale=bf16|fp32 (default bf16)," \
    "rounding=nearest|stochastic (default nearest)"
#define SLIMWIRE_MX_GRAMMAR                                                             \
    ":scale=floor|ceil (default floor, as the OCP's conversion does),rounding=nearest|" \
    "stochastic (default nearest; stochastic needs scale=ceil)"

constexpr const char* kFp8e4m3Name = "fp8e4m3";
constexpr const char* kFp8e5m2Name = "fp8e5m2";
constexpr const char* kMxFp4Name = "mxfp4";
constexpr const char* kNvFp4Name = "nvfp4";

}  // namespace

// Blocks of 8-bit floats with 3 bits of fraction, largest 448.
extern const CodecDescriptor codec_fp8e4m3;
constinit const CodecDescriptor codec_fp8e4m3 =
    BlockFloat<Fp8e4m3, 64, &BlockFloatTable::fp8e4m3, &kFp8e4m3Name>::descriptor(
        "fp8e4m3" SLIMWIRE_FP8_GRAMMAR);

// Blocks of 8-bit floats with 2 bits of fraction, largest 57344.
extern const CodecDescriptor codec_fp8e5m2;
constinit const CodecDescriptor codec_fp8e5m2 =
    BlockFloat<Fp8e5m2, 64, &BlockFloatTable::fp8e5m2, &kFp8e5m2Name>::descriptor(
        "fp8e5m2" SLIMWIRE_FP8_GRAMMAR);

// Blocks of 32 OCP floats of 4 bits, 1 of fraction, under a power of two.
extern const CodecDescriptor codec_mxfp4;
constinit const CodecDescriptor codec_mxfp4 =
    BlockFloat<MxFp4, 32, &BlockFloatTable::mxfp4, &kMxFp4Name>::descriptor(
        "mxfp4" SLIMWIRE_MX_GRAMMAR);

// Blocks of 16 floats of 4 bits under an e4m3 scale, in groups of 512 under an fp32.
extern const CodecDescriptor codec_nvfp4;
constinit const CodecDescriptor codec_nvfp4 =
    BlockFloat<NvFp4, 16, &BlockFloatTable::nvfp4, &kNvFp4Name>::descriptor(
        "nvfp4:scale=nearest|ceil (default nearest, as NVIDIA's conversion does),"
        "rounding=nearest|stochastic (default nearest; stochastic needs scale=ceil)");

}  // namespace slimwire
