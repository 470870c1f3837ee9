// The block floats of codecs/FORMAT.md by real arithmetic: fp8e4m3, fp8e5m2.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

constexpr double kFp8Nan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_e4m3(const CodecSpec& spec) {
    return std::string_view(spec.codec->name) == "fp8e4m3";
}
const Format& fp8_target_of(const CodecSpec& spec) {
    return is_e4m3(spec) ? kFloat8e4m3 : kFloat8e5m2;
}
int scale_bytes(const CodecSpec& spec) {
    return spec.params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32) ? 4 : 2;
}

// The multiple of 2^-8 of its binade, at least of 2^-133, that is next to `value` upwards or down.
double to_bfloat16(double value, double (*direction)(double)) {
    const double unit = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
    return direction(value / unit) * unit;
}

double scale_of(const CodecSpec& spec, double largest) {
    const double max = fp8_target_of(spec).max_finite;
    const double limit = static_cast<double>(std::numeric_limits<float>::max()) / max;
    double scale = static_cast<float>(largest / max);
    if (scale_bytes(spec) == 2) {
        scale = scale == 0 ? 0 : to_bfloat16(scale, std::ceil);
    }
    scale = std::min(scale, to_bfloat16(limit, std::floor));
    return std::max(scale, 0x1p-126);
}

int code_of(const CodecSpec& spec, double value) {
    const Format& format = fp8_target_of(spec);
    const int fraction_bits = format.precision - 1;
    const int sign = std::signbit(value) ? 0x80 : 0;
    const double magnitude = std::abs(value);
    if (magnitude < std::ldexp(1.0, format.min_exponent)) {
        return sign + static_cast<int>(std::ldexp(magnitude, fraction_bits - format.min_exponent));
    }
    const int exponent = std::ilogb(magnitude);
    const int fraction =
        static_cast<int>(std::ldexp(magnitude, fraction_bits - exponent)) - (1 << fraction_bits);
    return sign + ((exponent - format.min_exponent + 1) << fraction_bits) + fraction;
}

double value_of(const CodecSpec& spec, int code) {
    const Format& format = fp8_target_of(spec);
    const int fraction_bits = format.precision - 1;
    const int fraction = code % (1 << fraction_bits);
    const int field = code % 128 / (1 << fraction_bits);
    double magnitude = std::ldexp(fraction, format.min_exponent - fraction_bits);
    if (field > 0) {
        magnitude = std::ldexp((1 << fraction_bits) + fraction,
                               field - 1 + format.min_exponent - fraction_bits);
    }
    if (is_e4m3(spec)) {
        magnitude = code % 128 == 127 ? kFp8Nan : magnitude;
    } else if (field == 31) {
        magnitude = fraction == 0 ? kInfinity : kFp8Nan;
    }
    return code >= 128 ? -magnitude : magnitude;
}

}  // namespace

std::vector<uint8_t> encode_fp8(const CodecSpec& spec,
                                const std::vector<float>& p,
                                const Draw& draw,
                                DType) {
    const Format& format = fp8_target_of(spec);
    const size_t block = spec.params.block;
    const size_t blocks = (p.size() + block - 1) / block;
    const bool stochastic = spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    std::vector<uint8_t> bytes(blocks * block);
    std::vector<uint8_t> scales;
    for (size_t b = 0; b < blocks; ++b) {
        const size_t end = std::min((b + 1) * block, p.size());
        double largest = 0;
        bool finite = true;
        for (size_t i = b * block; i < end; ++i) {
            finite = finite && std::isfinite(p[i]);
            largest = std::max(largest, std::abs(static_cast<double>(p[i])));
        }
        const double scale = !finite ? kFp8Nan : largest == 0 ? 0 : scale_of(spec, largest);
        const double inverse = largest == 0 ? 0 : static_cast<float>(1.0 / scale);
        for (size_t i = b * block; finite && i < end; ++i) {
            const double y = std::clamp<double>(static_cast<float>(p[i] * inverse),
                                                -format.max_finite, format.max_finite);
            const double rounded =
                stochastic ? round_up_or_down(format, y, random_byte(draw, static_cast<int64_t>(i)))
                           : round_to(format, y);
            bytes[i] = static_cast<uint8_t>(code_of(spec, rounded));
        }
        const uint32_t word =
            std::isnan(scale) ? 0x7FC00000u : std::bit_cast<uint32_t>(static_cast<float>(scale));
        for (int byte = 4 - scale_bytes(spec); byte < 4; ++byte) {
            scales.push_back(static_cast<uint8_t>(word >> (8 * byte)));
        }
    }
    bytes.insert(bytes.end(), scales.begin(), scales.end());
    return bytes;
}

std::vector<float> decode_fp8(const CodecSpec& spec, const uint8_t* bytes, int64_t count, DType) {
    const int64_t block = spec.params.block;
    const int width = scale_bytes(spec);
    const uint8_t* scales = bytes + (count + block - 1) / block * block;
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        uint32_t word = 0;
        for (int byte = 0; byte < width; ++byte) {
            word |= static_cast<uint32_t>(scales[i / block * width + byte])
                    << (8 * (4 - width + byte));
        }
        const double scale = std::bit_cast<float>(word);
        values[static_cast<size_t>(i)] =
            static_cast<float>(std::isfinite(scale) ? value_of(spec, bytes[i]) * scale : kFp8Nan);
    }
    return values;
}

}  // namespace slimwire::reference
