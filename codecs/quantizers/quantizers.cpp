// The family of quantizers: sign, ternary, natural and qsgd. A code says the sign of an
// element and one of few magnitudes, which a block's fp32 scale gives their size; rounding is
// stochastic by default where there is a choice. Layout and numerics: FORMAT.md, "Quantizers".
// quantizers.cu has the kernels, and quantizer_shape.h says what members differ in. Sources:
// signSGD with mean (Bernstein 2018), 1-bit Adam (Tang 2021), TernGrad (Wen 2017), QSGD (Alistarh
// 2017), natural compression (Horvath 2019).
#include <algorithm>
#include <array>
#include <bit>
#include <numbers>

#include "codecs/launchers.h"
#include "codecs/numeric.h"
#include "codecs/quantizers/host/table.h"
#include "codecs/quantizers/quantizer_shape.h"
#include "codecs/simd/block_codec.h"

namespace slimwire {

template <QuantizerRule kRule>
struct QuantizerKernels;

namespace {

constexpr SpecWord<QuantizerScale> kScalesOfSigns[] = {{"mean", QuantizerScale::kMean},
                                                       {"l2", QuantizerScale::kNorm}};
constexpr SpecWord<QuantizerScale> kScalesOfTernary[] = {{"max", QuantizerScale::kMax},
                                                         {"clip", QuantizerScale::kClip}};
constexpr SpecWord<QuantizerScale> kScalesOfLevels[] = {{"l2", QuantizerScale::kNorm},
                                                        {"max", QuantizerScale::kMax}};
constexpr SpecWord<int> kPowerBits[] = {{"8", 8}, {"4", 4}};

bool set_levels(std::string_view value, CodecParams* params) {
    uint32_t levels = 0;
    if (!read_number(value, {1, 127}, &levels)) {
        return false;
    }
    params->levels = static_cast<uint16_t>(levels);
    params->bits = 2;
    while (static_cast<uint32_t>(largest_code(params->bits)) < levels) {
        params->bits = static_cast<uint8_t>(params->bits + 2);
    }
    return true;
}

// Blocks of codes of 1 bit have at least 32 elements, so that scales stand at multiples of 4 bytes.
constexpr SpecKey kBlockOfBits = number_key<&CodecParams::block, NumberRange{32, 2048, true}>(
    "block", "a power of two from 32 to 2048");
constexpr SpecKey kScaleOfSigns =
    word_key<&CodecParams::scale_type, kScalesOfSigns>("scale", "mean or l2");
constexpr SpecKey kScaleOfTernary =
    word_key<&CodecParams::scale_type, kScalesOfTernary>("scale", "max or clip");
constexpr SpecKey kScaleOfLevels =
    word_key<&CodecParams::scale_type, kScalesOfLevels>("scale", "l2 or max");
constexpr SpecKey kLevels = {
    "levels", "a whole number from 1 to 127", set_levels,
    [](const CodecParams& params) { return std::to_string(params.levels); }};
constexpr SpecKey kBitsOfPowers = word_key<&CodecParams::bits, kPowerBits>("bits", "8 or 4");

const ChunkKernels<QuantizerShape>& quantizer_bodies(QuantizerRule rule, int bits) noexcept {
    const QuantizerTable& table = host_table<QuantizerTable>();
    switch (rule) {
        case QuantizerRule::kSign:
            break;
        case QuantizerRule::kLevels:
            return bits == 2   ? table.levels2
                   : bits == 4 ? table.levels4
                   : bits == 6 ? table.levels6
                               : table.levels8;
        case QuantizerRule::kPowers:
            return bits == 8 ? table.powers8 : table.powers4;
    }
    return table.sign;
}

// As a part of the largest magnitude of the block, which is the step of a sign at most, and a step
// or half of it of levels; a power of two errs by less than the element, to the nearest by a third.
double quantizer_error_bound(QuantizerRule rule, const CodecParams& params) {
    const bool stochastic = params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    constexpr double kRoundings = 1.0 + 0x1p-16;
    switch (rule) {
        case QuantizerRule::kSign:
            break;
        case QuantizerRule::kLevels: {
            const auto scale = static_cast<QuantizerScale>(params.scale_type);
            if (scale == QuantizerScale::kClip) {
                break;
            }
            // The root of a power of two, without libm.
            const int doublings = std::countr_zero(params.block);
            const double root = static_cast<double>(1 << doublings / 2) *
                                (doublings % 2 == 0 ? 1.0 : std::numbers::sqrt2);
            const double norm = scale == QuantizerScale::kNorm ? root : 1.0;
            const double step = norm / params.levels * kRoundings;
            return stochastic ? step : std::min(step / 2, 1.0);
        }
        case QuantizerRule::kPowers:
            return stochastic ? 1.0 : kRoundings / 3;
    }
    return kRoundings;
}

// Everything a member's descriptor needs. Words: a struct with kName, kDefaults and kKeys.
template <QuantizerRule kRule, class Words>
struct Quantizer : BlockCodec<Quantizer<kRule, Words>, Launchers<QuantizerKernels<kRule>>>, Words {
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

// One bit an element, its sign, and a block's mean magnitude.
struct Sign {
    static constexpr const char* kName = "sign";
    static constexpr CodecParams kDefaults = {
        .block = 1024, .bits = 1, .scale_type = static_cast<uint8_t>(QuantizerScale::kMean)};
    static constexpr std::array<const SpecKey*, 2> kKeys = {&kBlockOfBits, &kScaleOfSigns};
};

// Minus, nothing or plus the largest magnitude of a block, as TernGrad draws them.
struct Ternary {
    static constexpr const char* kName = "ternary";
    static constexpr CodecParams kDefaults = {
        .block = 128,
        .bits = 2,
        .scale_type = static_cast<uint8_t>(QuantizerScale::kMax),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic),
        .levels = 1};
    static constexpr std::array<const SpecKey*, 3> kKeys = {&spec_key_block, &kScaleOfTernary,
                                                            &spec_key_rounding_stochastic};
};

// Sign and exponent, as natural compression and natural dithering draw them.
struct Natural {
    static constexpr const char* kName = "natural";
    static constexpr CodecParams kDefaults = {
        .block = 256,
        .bits = 8,
        .scale_type = static_cast<uint8_t>(QuantizerScale::kMax),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic)};
    static constexpr std::array<const SpecKey*, 3> kKeys = {&kBitsOfPowers, &spec_key_block,
                                                            &spec_key_rounding_stochastic};
};

// A number of levels up to a block's norm, as QSGD draws them.
struct Qsgd {
    static constexpr const char* kName = "qsgd";
    static constexpr CodecParams kDefaults = {
        .block = 128,
        .bits = 8,
        .scale_type = static_cast<uint8_t>(QuantizerScale::kNorm),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic),
        .levels = 127};
    static constexpr std::array<const SpecKey*, 4> kKeys = {
        &kLevels, &spec_key_block, &kScaleOfLevels, &spec_key_rounding_stochastic};
};

}  // namespace

extern const CodecDescriptor codec_sign;
constinit const CodecDescriptor codec_sign = Quantizer<QuantizerRule::kSign, Sign>::descriptor(
    "sign:block=32..2048 (power of two, default 1024),scale=mean|l2 (default mean)");

extern const CodecDescriptor codec_ternary;
constinit const CodecDescriptor codec_ternary =
    Quantizer<QuantizerRule::kLevels, Ternary>::descriptor(
        "ternary:block=16..2048 (power of two, default 128),scale=max|clip (default max; clip: at "
        "most 2.5 standard deviations, which is a bias),rounding=nearest|stochastic (default "
        "stochastic)");

extern const CodecDescriptor codec_natural;
constinit const CodecDescriptor codec_natural =
    Quantizer<QuantizerRule::kPowers, Natural>::descriptor(
        "natural:bits=8|4 (default 8),block=16..2048 (power of two, default "
        "256),rounding=nearest|stochastic (default stochastic)");

extern const CodecDescriptor codec_qsgd;
constinit const CodecDescriptor codec_qsgd = Quantizer<QuantizerRule::kLevels, Qsgd>::descriptor(
    "qsgd:levels=1..127 (default 127; codes of 2, 4, 6 or 8 bits),block=16..2048 (power of two, "
    "default 128),scale=l2|max (default l2),rounding=nearest|stochastic (default stochastic)");

}  // namespace slimwire
