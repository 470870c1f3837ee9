// What the block floats have in common outside their operations. See block_float.h.
#include "codecs/block_float/block_float.h"

#include <array>

namespace slimwire {
namespace {

constexpr uint8_t kUpRule = static_cast<uint8_t>(ScaleRule::kUp);

bool set_rule(std::string_view value, std::string_view standard, CodecParams* params) {
    if (value != standard && value != "ceil") {
        return false;
    }
    params->scale_type = value == "ceil" ? kUpRule : static_cast<uint8_t>(ScaleRule::kStandard);
    return true;
}

constinit const SpecKey kPowerOfTwoScale = {
    "scale", "floor or ceil",
    [](std::string_view value, CodecParams* params) { return set_rule(value, "floor", params); },
    [](const CodecParams& params) {
        return std::string(params.scale_type == kUpRule ? "ceil" : "floor");
    }};
constinit const SpecKey kTwoLevelScale = {
    "scale", "nearest or ceil",
    [](std::string_view value, CodecParams* params) { return set_rule(value, "nearest", params); },
    [](const CodecParams& params) {
        return std::string(params.scale_type == kUpRule ? "ceil" : "nearest");
    }};

constexpr std::array<const SpecKey*, 3> kBinaryKeys = {&spec_key_block, &spec_key_scale,
                                                       &spec_key_rounding_stochastic};
constexpr std::array<const SpecKey*, 2> kPowerOfTwoKeys = {&kPowerOfTwoScale,
                                                           &spec_key_rounding_stochastic};
constexpr std::array<const SpecKey*, 2> kTwoLevelKeys = {&kTwoLevelScale,
                                                         &spec_key_rounding_stochastic};

}  // namespace

std::span<const SpecKey* const> block_float_keys(BlockScale scale) noexcept {
    switch (scale) {
        case BlockScale::kBinary:
            return kBinaryKeys;
        case BlockScale::kPowerOfTwo:
            return kPowerOfTwoKeys;
        case BlockScale::kTwoLevels:
            return kTwoLevelKeys;
    }
    return {};
}

Status parse_block_float(const char* codec,
                         BlockScale scale,
                         const CodecParams& defaults,
                         std::string_view text,
                         CodecParams* params) {
    CodecParams result;
    SLIMWIRE_TRY(parse_spec_keys(codec, block_float_keys(scale), defaults, text, &result));
    if (scale != BlockScale::kBinary && result.scale_type != kUpRule &&
        result.rounding == static_cast<uint8_t>(Rounding::kStochastic)) {
        return {Code::kInvalidArgument,
                "codec " + std::string(codec) +
                    ": rounding=stochastic needs scale=ceil; another scale cuts the largest "
                    "elements of a block off, which is a bias"};
    }
    *params = result;
    return {};
}

namespace {

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
