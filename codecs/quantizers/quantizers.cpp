// What the quantizers have in common outside their operations. See quantizers.h.
#include "codecs/quantizers/quantizers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numbers>

#include "codecs/numeric.h"

namespace slimwire {
namespace {

// Sets the scale that `value` names among two.
bool set_scale(std::string_view value,
               std::string_view first,
               QuantizerScale of_first,
               std::string_view second,
               QuantizerScale of_second,
               CodecParams* params) {
    if (value != first && value != second) {
        return false;
    }
    params->scale_type = static_cast<uint8_t>(value == first ? of_first : of_second);
    return true;
}

std::string scale_text(const CodecParams& params) {
    switch (static_cast<QuantizerScale>(params.scale_type)) {
        case QuantizerScale::kMean:
            return "mean";
        case QuantizerScale::kNorm:
            return "l2";
        case QuantizerScale::kMax:
            return "max";
        case QuantizerScale::kClip:
            return "clip";
    }
    return {};
}

bool set_block(std::string_view value, CodecParams* params) {
    uint32_t block = 0;
    if (!read_power_of_two(value, 32, 2048, &block)) {
        return false;
    }
    params->block = static_cast<uint16_t>(block);
    return true;
}

bool set_levels(std::string_view value, CodecParams* params) {
    uint32_t levels = 0;
    if (!read_number(value, 1, 127, &levels)) {
        return false;
    }
    params->levels = static_cast<uint16_t>(levels);
    params->bits = 2;
    while (static_cast<uint32_t>(largest_code(params->bits)) < levels) {
        params->bits = static_cast<uint8_t>(params->bits + 2);
    }
    return true;
}

bool set_bits(std::string_view value, CodecParams* params) {
    if (value != "8" && value != "4") {
        return false;
    }
    params->bits = value == "8" ? 8 : 4;
    return true;
}

}  // namespace

constinit const SpecKey spec_key_block_of_bits = {
    "block", "a power of two from 32 to 2048", set_block,
    [](const CodecParams& params) { return std::to_string(params.block); }};
constinit const SpecKey spec_key_scale_of_signs = {
    "scale", "mean or l2",
    [](std::string_view value, CodecParams* params) {
        return set_scale(value, "mean", QuantizerScale::kMean, "l2", QuantizerScale::kNorm, params);
    },
    scale_text};
constinit const SpecKey spec_key_scale_of_ternary = {
    "scale", "max or clip",
    [](std::string_view value, CodecParams* params) {
        return set_scale(value, "max", QuantizerScale::kMax, "clip", QuantizerScale::kClip, params);
    },
    scale_text};
constinit const SpecKey spec_key_scale_of_levels = {
    "scale", "l2 or max",
    [](std::string_view value, CodecParams* params) {
        return set_scale(value, "l2", QuantizerScale::kNorm, "max", QuantizerScale::kMax, params);
    },
    scale_text};
constinit const SpecKey spec_key_levels = {
    "levels", "a whole number from 1 to 127", set_levels,
    [](const CodecParams& params) { return std::to_string(params.levels); }};
constinit const SpecKey spec_key_bits_of_powers = {
    "bits", "8 or 4", set_bits,
    [](const CodecParams& params) { return std::to_string(params.bits); }};

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

namespace {

// One bit an element, its sign, and a block's mean magnitude.
struct Sign {
    static constexpr const char* kName = "sign";
    static constexpr CodecParams kDefaults = {
        .block = 1024, .bits = 1, .scale_type = static_cast<uint8_t>(QuantizerScale::kMean)};
    static constexpr std::array<const SpecKey*, 2> kKeys = {&spec_key_block_of_bits,
                                                            &spec_key_scale_of_signs};
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
    static constexpr std::array<const SpecKey*, 3> kKeys = {
        &spec_key_block, &spec_key_scale_of_ternary, &spec_key_rounding_stochastic};
};

// Sign and exponent, as natural compression and natural dithering draw them.
struct Natural {
    static constexpr const char* kName = "natural";
    static constexpr CodecParams kDefaults = {
        .block = 256,
        .bits = 8,
        .scale_type = static_cast<uint8_t>(QuantizerScale::kMax),
        .rounding = static_cast<uint8_t>(Rounding::kStochastic)};
    static constexpr std::array<const SpecKey*, 3> kKeys = {
        &spec_key_bits_of_powers, &spec_key_block, &spec_key_rounding_stochastic};
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
    static constexpr std::array<const SpecKey*, 4> kKeys = {&spec_key_levels, &spec_key_block,
                                                            &spec_key_scale_of_levels,
                                                            &spec_key_rounding_stochastic};
};

}  // namespace

extern const CodecDescriptor codec_sign;
constinit const CodecDescriptor codec_sign = Quantizer<QuantizerRule::kSign, Sign>::descriptor(
    "sign:block=32..2048 (power of two, default 1024),scale=mean|l2 (default mean)");

extern const CodecDescriptor codec_ternary;
constinit const CodecDescriptor codec_ternary =
    Quantizer<QuantizerRule::kLevels, Ternary>::descriptor(
        "ternary:block=16..2048 (power of two, default 128),scale=max|clip (default max; clip: at "
        "most "
        "2.5 standard deviations, which is a bias),rounding=nearest|stochastic (default "
        "stochastic)");

extern const CodecDescriptor codec_natural;
constinit const CodecDescriptor codec_natural =
    Quantizer<QuantizerRule::kPowers, Natural>::descriptor(
        "natural:bits=8|4 (default 8),block=16..2048 (power of two, default 256),"
        "rounding=nearest|stochastic (default stochastic)");

extern const CodecDescriptor codec_qsgd;
constinit const CodecDescriptor codec_qsgd = Quantizer<QuantizerRule::kLevels, Qsgd>::descriptor(
    "qsgd:levels=1..127 (default 127; codes of 2, 4, 6 or 8 bits),block=16..2048 (power of two, "
    "default 128),scale=l2|max (default l2),rounding=nearest|stochastic (default stochastic)");

}  // namespace slimwire
