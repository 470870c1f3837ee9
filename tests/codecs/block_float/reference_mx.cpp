// The block floats with scales of 8 bits of codecs/FORMAT.md by real arithmetic: mxfp4 from the
// OCP's definition, nvfp4 from NVIDIA's.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

constexpr double kMxNan = std::numeric_limits<double>::quiet_NaN();

struct Element {
    Format format;
    int bits;
    int emax;  // exponent of the largest value
};
constexpr Element kCode{{2, 0, 6.0}, 4, 2};
constexpr Element kScale{kFloat8e4m3, 8, 8};
constexpr size_t kMxGroup = 512;
bool is_nvfp4(const CodecSpec& spec) {
    return std::string_view(spec.codec->name) == "nvfp4";
}
bool rounds_up(const CodecSpec& spec) {
    return spec.params.scale_type == static_cast<uint8_t>(ScaleRule::kUp);
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
        values.push_back(value > element.format.max_finite ? kMxNan : value);
    }
    return values;
}

// The code whose magnitude is that of a value of the format, with its sign.
uint32_t code_of(const Element& element, const std::vector<double>& magnitudes, double value) {
    const auto found = std::find(magnitudes.begin(), magnitudes.end(), std::abs(value));
    const auto code = static_cast<uint32_t>(found - magnitudes.begin());
    return code + (std::signbit(value) ? 1u << (element.bits - 1) : 0);
}

void put_bits(std::vector<uint8_t>& bytes, size_t at, int width, uint32_t value) {
    for (int bit = 0; bit < width; ++bit) {
        if ((value >> bit & 1) != 0) {
            bytes[(at + static_cast<size_t>(bit)) / 8] |=
                static_cast<uint8_t>(1u << ((at + static_cast<size_t>(bit)) % 8));
        }
    }
}
uint32_t mx_get_bits(const uint8_t* bytes, int64_t at, int width) {
    uint32_t value = 0;
    for (int bit = 0; bit < width; ++bit) {
        value |= static_cast<uint32_t>(bytes[(at + bit) / 8] >> ((at + bit) % 8) & 1) << bit;
    }
    return value;
}

double largest_of(const std::vector<float>& p, size_t begin, size_t end) {
    double largest = 0;
    for (size_t i = begin; i < std::min(end, p.size()); ++i) {
        const double magnitude = std::abs(double{p[i]});
        if (!std::isfinite(magnitude)) {
            return kMxNan;
        }
        largest = std::max(largest, magnitude);
    }
    return largest;
}

// A block's scale: what multiplies its codes, its reciprocal, and the byte that is stored.
struct BlockScaleValue {
    double scale;
    double inverse;
    uint8_t byte;
};

BlockScaleValue power_of_two(const CodecSpec& spec, double largest) {
    if (std::isnan(largest)) {
        return {kMxNan, 0, 0xFF};
    }
    int exponent = largest == 0 ? -1000 : std::ilogb(largest) - kCode.emax;
    if (rounds_up(spec) && largest > std::ldexp(kCode.format.max_finite, exponent)) {
        ++exponent;
    }
    exponent = std::clamp(exponent, -127, 127 - kCode.emax);
    return {std::ldexp(1.0, exponent), std::ldexp(1.0, -exponent),
            static_cast<uint8_t>(exponent + 127)};
}

float group_scale(double largest) {
    if (std::isnan(largest)) {
        return static_cast<float>(kMxNan);
    }
    const float scale = static_cast<float>(largest / 2688.0);
    return largest == 0 ? 0.0f : std::clamp(scale, 0x1p-117f, 0x1.86p116f);
}
BlockScaleValue two_levels(const CodecSpec& spec, float group, double largest) {
    if (group == 0 || std::isnan(group)) {
        return {0, 0, 0};
    }
    const auto reciprocal = static_cast<float>(1.0 / static_cast<double>(6.0f * group));
    const double wanted = static_cast<float>(largest * double{reciprocal});
    double code = round_to(kScale.format, std::min(wanted, 448.0));
    if (rounds_up(spec) && code < std::min(wanted, 448.0)) {
        const std::vector<double> values = magnitudes_of(kScale);
        code = *std::find_if(values.begin(), values.end(), [&](double v) { return v > code; });
    }
    const auto scale = static_cast<float>(code * double{group});
    const auto inverse = static_cast<float>(1.0 / double{scale});
    return {scale, code == 0 ? 0 : inverse,
            static_cast<uint8_t>(code_of(kScale, magnitudes_of(kScale), code))};
}

}  // namespace

std::vector<uint8_t> encode_mx(const CodecSpec& spec,
                               const std::vector<float>& p,
                               const Draw& draw,
                               DType) {
    const std::vector<double> magnitudes = magnitudes_of(kCode);
    const bool stochastic = spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    const size_t block = is_nvfp4(spec) ? 16 : 32;
    const size_t blocks = (p.size() + block - 1) / block;
    std::vector<uint8_t> bytes(blocks * block * static_cast<size_t>(kCode.bits) / 8);
    std::vector<uint8_t> groups;
    std::vector<uint8_t> scales;
    float group = 0;
    for (size_t b = 0; b < blocks; ++b) {
        const size_t begin = b * block;
        if (is_nvfp4(spec) && begin % kMxGroup == 0) {
            group = group_scale(largest_of(p, begin, begin + kMxGroup));
            const auto word = std::isnan(group) ? 0x7FC00000u : std::bit_cast<uint32_t>(group);
            for (int byte = 0; byte < 4; ++byte) {
                groups.push_back(static_cast<uint8_t>(word >> (8 * byte)));
            }
        }
        const double largest = largest_of(p, begin, begin + block);
        const BlockScaleValue scale =
            is_nvfp4(spec) ? two_levels(spec, group, largest) : power_of_two(spec, largest);
        scales.push_back(scale.byte);
        const bool poison = std::isnan(is_nvfp4(spec) ? group : scale.scale);
        for (size_t i = begin; !poison && i < std::min(begin + block, p.size()); ++i) {
            const double y = std::clamp<double>(static_cast<float>(p[i] * scale.inverse),
                                                -kCode.format.max_finite, kCode.format.max_finite);
            const double rounded =
                stochastic
                    ? round_up_or_down(kCode.format, y, random_byte(draw, static_cast<int64_t>(i)))
                    : round_to(kCode.format, y);
            put_bits(bytes, i * static_cast<size_t>(kCode.bits), kCode.bits,
                     code_of(kCode, magnitudes, rounded));
        }
    }
    bytes.insert(bytes.end(), groups.begin(), groups.end());
    bytes.insert(bytes.end(), scales.begin(), scales.end());
    return bytes;
}

std::vector<float> decode_mx(const CodecSpec& spec, const uint8_t* bytes, int64_t count, DType) {
    const std::vector<double> magnitudes = magnitudes_of(kCode);
    const std::vector<double> scale_values = magnitudes_of(kScale);
    const bool two = is_nvfp4(spec);
    const int64_t block = two ? 16 : 32;
    const int64_t blocks = (count + block - 1) / block;
    const uint8_t* groups = bytes + blocks * block * kCode.bits / 8;
    const uint8_t* scales = groups + (two ? (blocks + 31) / 32 * 4 : 0);
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const uint8_t byte = scales[i / block];
        double scale = byte == 0xFF ? kMxNan : std::ldexp(1.0, byte - 127);
        if (two) {
            const uint32_t word = mx_get_bits(groups + i / 512 * 4, 0, 32);
            const double group = std::bit_cast<float>(word);
            const double first = byte >= 128 ? -scale_values[byte % 128] : scale_values[byte];
            scale = static_cast<float>(first * group);
        }
        const uint32_t code = mx_get_bits(bytes, i * kCode.bits, kCode.bits);
        const uint32_t sign = 1u << (kCode.bits - 1);
        const double magnitude = magnitudes[code % sign];
        values[static_cast<size_t>(i)] = static_cast<float>(
            std::isfinite(scale) ? ((code & sign) != 0 ? -magnitude : magnitude) * scale : kMxNan);
    }
    return values;
}

}  // namespace slimwire::reference
