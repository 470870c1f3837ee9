// The block floats of codecs/FORMAT.md by real arithmetic: fp8e4m3 and fp8e5m2, mxfp4 from the
// OCP's definition, nvfp4 from NVIDIA's.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

constexpr double kScaleNan = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kGroup = 512;

struct Element {
    Format format;
    int bits;
    int emax;  // exponent of the largest value
};
constexpr Element kFp4{{2, 0, 6.0}, 4, 2};
constexpr Element kE4m3{kFloat8e4m3, 8, 8};
constexpr Element kE5m2{kFloat8e5m2, 8, 15};

bool named(const CodecSpec& spec, std::string_view name) {
    return spec.codec->name == name;
}
const Element& element_of(const CodecSpec& spec) {
    return named(spec, "fp8e4m3") ? kE4m3 : named(spec, "fp8e5m2") ? kE5m2 : kFp4;
}
bool rounds_up(const CodecSpec& spec) {
    return spec.params.scale_type == static_cast<uint8_t>(ScaleRule::kUp);
}
// Of a block, for scales that are no bytes of their own kind 0.
int float_scale_bytes(const CodecSpec& spec) {
    if (element_of(spec).bits != 8) {
        return 0;
    }
    return spec.params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32) ? 4 : 2;
}

// Every magnitude of a format in the order of its codes, by its definition.
std::vector<double> magnitudes_of(const Element& element) {
    std::vector<double> values;
    const int fraction_bits = element.format.precision - 1;
    for (int code = 0; code < 1 << (element.bits - 1); ++code) {
        const int field = code >> fraction_bits;
        const int fraction = code % (1 << fraction_bits);
        const int significand = field == 0 ? fraction : fraction + (1 << fraction_bits);
        const double value = std::ldexp(
            significand, std::max(field, 1) - 1 + element.format.min_exponent - fraction_bits);
        const bool infinite = field == 31 && fraction == 0;  // of e5m2
        values.push_back(value <= element.format.max_finite ? value
                         : infinite ? std::numeric_limits<double>::infinity()
                                    : kScaleNan);
    }
    return values;
}

// The code whose magnitude is that of a value of the format, with its sign.
uint32_t code_of(const Element& element, const std::vector<double>& magnitudes, double value) {
    const auto found = std::find(magnitudes.begin(), magnitudes.end(), std::abs(value));
    const auto code = static_cast<uint32_t>(found - magnitudes.begin());
    return code + (std::signbit(value) ? 1u << (element.bits - 1) : 0);
}
double value_of(const std::vector<double>& magnitudes, uint32_t code) {
    const auto sign = static_cast<uint32_t>(magnitudes.size());
    return code >= sign ? -magnitudes[code - sign] : magnitudes[code];
}

double largest_of(const std::vector<float>& p, size_t begin, size_t end) {
    double largest = 0;
    for (size_t i = begin; i < std::min(end, p.size()); ++i) {
        const double magnitude = std::abs(double{p[i]});
        if (!std::isfinite(magnitude)) {
            return kScaleNan;
        }
        largest = std::max(largest, magnitude);
    }
    return largest;
}

// A block's scale: what multiplies its codes, its reciprocal, and what is stored.
struct BlockScaleValue {
    double scale;
    double inverse;
    uint32_t stored;
};

BlockScaleValue binary(const CodecSpec& spec, double largest) {
    const int bytes = float_scale_bytes(spec);
    const double scale = block_scale(largest, element_of(spec).format.max_finite, bytes);
    return {scale, scale > 0 ? static_cast<float>(1.0 / scale) : 0,
            scale_word(scale) >> (32 - 8 * bytes)};
}
BlockScaleValue power_of_two(const CodecSpec& spec, double largest) {
    if (std::isnan(largest)) {
        return {kScaleNan, 0, 0xFF};
    }
    int exponent = largest == 0 ? -1000 : std::ilogb(largest) - kFp4.emax;
    if (rounds_up(spec) && largest > std::ldexp(kFp4.format.max_finite, exponent)) {
        ++exponent;
    }
    exponent = std::clamp(exponent, -127, 127 - kFp4.emax);
    return {std::ldexp(1.0, exponent), std::ldexp(1.0, -exponent),
            static_cast<uint32_t>(exponent + 127)};
}

float group_scale(double largest) {
    if (std::isnan(largest)) {
        return static_cast<float>(kScaleNan);
    }
    const float scale = static_cast<float>(largest / 2688.0);
    return largest == 0 ? 0.0f : std::clamp(scale, 0x1p-117f, 0x1.86p116f);
}
BlockScaleValue two_levels(const CodecSpec& spec, float group, double largest) {
    if (group == 0 || std::isnan(group)) {
        return {group, 0, 0};
    }
    const auto reciprocal = static_cast<float>(1.0 / static_cast<double>(6.0f * group));
    const double wanted = static_cast<float>(largest * double{reciprocal});
    double code = round_to(kE4m3.format, std::min(wanted, 448.0));
    if (rounds_up(spec) && code < std::min(wanted, 448.0)) {
        const std::vector<double> values = magnitudes_of(kE4m3);
        code = *std::find_if(values.begin(), values.end(), [&](double v) { return v > code; });
    }
    const auto scale = static_cast<float>(code * double{group});
    const auto inverse = static_cast<float>(1.0 / double{scale});
    return {scale, code == 0 ? 0 : inverse, code_of(kE4m3, magnitudes_of(kE4m3), code)};
}

// Planes in bits: codes, the scales of groups, those of blocks.
struct Planes {
    bool two_levels;
    int scale_bits;
    int64_t block, groups, scales, bytes;

    Planes(const CodecSpec& spec, int64_t count)
        : two_levels(named(spec, "nvfp4")),
          scale_bits(std::max(8, 8 * float_scale_bytes(spec))),
          block(spec.params.block) {
        const int64_t blocks = (count + block - 1) / block;
        groups = blocks * block * element_of(spec).bits;
        scales = groups + (two_levels ? (blocks + 31) / 32 * 32 : 0);
        bytes = (scales + blocks * scale_bits) / 8;
    }
};

}  // namespace

std::vector<uint8_t> encode_block_float(const CodecSpec& spec,
                                        const std::vector<float>& p,
                                        const Draw& draw,
                                        DType) {
    const Element& code = element_of(spec);
    const std::vector<double> magnitudes = magnitudes_of(code);
    const double most = code.format.max_finite;
    const bool stochastic = spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    const Planes at(spec, static_cast<int64_t>(p.size()));
    const auto block = static_cast<size_t>(at.block);
    std::vector<uint8_t> bytes(static_cast<size_t>(at.bytes));
    float group = 0;
    for (size_t begin = 0; begin < p.size(); begin += block) {
        const auto number = static_cast<int64_t>(begin / block);
        if (at.two_levels && begin % kGroup == 0) {
            group = group_scale(largest_of(p, begin, begin + kGroup));
            put_bits(bytes.data(), at.groups + static_cast<int64_t>(begin / kGroup) * 32, 32,
                     scale_word(group));
        }
        const double largest = largest_of(p, begin, begin + block);
        const BlockScaleValue scale = at.two_levels    ? two_levels(spec, group, largest)
                                      : code.bits == 8 ? binary(spec, largest)
                                                       : power_of_two(spec, largest);
        put_bits(bytes.data(), at.scales + number * at.scale_bits, at.scale_bits, scale.stored);
        for (size_t i = begin; !std::isnan(scale.scale) && i < std::min(begin + block, p.size());
             ++i) {
            const double y =
                std::clamp<double>(static_cast<float>(p[i] * scale.inverse), -most, most);
            const auto index = static_cast<int64_t>(i);
            const double rounded = stochastic
                                       ? round_up_or_down(code.format, y, random_byte(draw, index))
                                       : round_to(code.format, y);
            put_bits(bytes.data(), index * code.bits, code.bits,
                     code_of(code, magnitudes, rounded));
        }
    }
    return bytes;
}

std::vector<float> decode_block_float(const CodecSpec& spec,
                                      const uint8_t* bytes,
                                      int64_t count,
                                      DType) {
    const Element& code = element_of(spec);
    const std::vector<double> magnitudes = magnitudes_of(code);
    const std::vector<double> scale_values = magnitudes_of(kE4m3);
    const Planes at(spec, count);
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t stored =
            get_bits(bytes, at.scales + i / at.block * at.scale_bits, at.scale_bits);
        double scale = stored == 0xFF ? kScaleNan : std::ldexp(1.0, static_cast<int>(stored) - 127);
        if (at.two_levels) {
            const double group = float_of(get_bits(bytes, at.groups + i / 512 * 32, 32));
            scale = static_cast<float>(value_of(scale_values, stored) * group);
        } else if (code.bits == 8) {
            scale = float_of(stored << (32 - at.scale_bits));
        }
        const double value = value_of(magnitudes, get_bits(bytes, i * code.bits, code.bits));
        values[static_cast<size_t>(i)] =
            static_cast<float>(std::isfinite(scale) ? value * scale : kScaleNan);
    }
    return values;
}

}  // namespace slimwire::reference
