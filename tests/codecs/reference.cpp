#include "tests/codecs/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

namespace slimwire::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const Format& format_of(DType dtype) {
    return dtype == DType::kFloat16 ? kFloat16 : kBfloat16;
}

int largest_code_of(int bits) {
    return static_cast<int>(std::ldexp(1.0, bits - 1)) - 1;
}

// Smallest bf16 that is not below `value` > 0.
double up_to_bfloat16(double value) {
    const int exponent = std::max(std::ilogb(value), kBfloat16.min_exponent);
    const double unit = std::ldexp(1.0, exponent - (kBfloat16.precision - 1));
    return std::ceil(value / unit) * unit;
}

// Largest bf16 s with q * s <= the largest fp32.
double scale_cap(int q) {
    const double limit = static_cast<double>(std::numeric_limits<float>::max()) / q;
    const double unit = std::ldexp(1.0, std::ilogb(limit) - (kBfloat16.precision - 1));
    return std::floor(limit / unit) * unit;
}

void put_bits(std::vector<uint8_t>& bytes, int64_t bit, int width, int value) {
    for (int i = 0; i < width; ++i, ++bit) {
        if ((static_cast<unsigned>(value) >> i & 1) != 0) {
            bytes[static_cast<size_t>(bit / 8)] |= static_cast<uint8_t>(1 << (bit % 8));
        }
    }
}

int get_bits(const uint8_t* bytes, int64_t bit, int width) {
    int value = 0;
    for (int i = 0; i < width; ++i, ++bit) {
        value += (bytes[bit / 8] >> (bit % 8) & 1) << i;
    }
    return value >= 1 << (width - 1) ? value - (1 << width) : value;
}

bool float32_scale(const CodecSpec& spec) {
    return spec.params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32);
}

std::vector<uint8_t> encode_blocks(const CodecSpec& spec,
                                   const std::vector<float>& p,
                                   const Draw&,
                                   DType) {
    const int bits = spec.params.bits;
    const int64_t block = spec.params.block;
    const int64_t count = static_cast<int64_t>(p.size());
    const int64_t blocks = (count + block - 1) / block;
    const int q = largest_code_of(bits);
    std::vector<uint8_t> codes(static_cast<size_t>(blocks * block * bits / 8));
    std::vector<uint8_t> scales;
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t end = std::min((b + 1) * block, count);
        double largest = 0;
        bool finite = true;
        for (int64_t i = b * block; i < end; ++i) {
            finite = finite && std::isfinite(p[static_cast<size_t>(i)]);
            largest = std::max(largest, std::abs(static_cast<double>(p[static_cast<size_t>(i)])));
        }
        double scale = 0;
        if (!finite) {
            scale = kNan;
        } else if (largest > 0) {
            scale = static_cast<float>(largest / q);
            scale = float32_scale(spec) ? scale : up_to_bfloat16(scale == 0 ? 0x1p-149 : scale);
            scale = std::clamp(scale, 0x1p-126, scale_cap(q));
            const double inverse = static_cast<float>(1.0 / scale);
            for (int64_t i = b * block; i < end; ++i) {
                put_bits(codes, i * bits, bits,
                         static_cast<int>(std::nearbyint(p[static_cast<size_t>(i)] * inverse)));
            }
        }
        const uint32_t word =
            std::isnan(scale) ? 0x7FC00000u : std::bit_cast<uint32_t>(static_cast<float>(scale));
        for (int byte = float32_scale(spec) ? 0 : 2; byte < 4; ++byte) {
            scales.push_back(static_cast<uint8_t>(word >> (8 * byte)));
        }
    }
    codes.insert(codes.end(), scales.begin(), scales.end());
    return codes;
}

std::vector<float> decode_blocks(const CodecSpec& spec,
                                 const uint8_t* bytes,
                                 int64_t count,
                                 DType) {
    const int bits = spec.params.bits;
    const int64_t block = spec.params.block;
    const uint8_t* scales = bytes + (count + block - 1) / block * block * bits / 8;
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        uint32_t word = 0;
        const int width = float32_scale(spec) ? 4 : 2;
        for (int byte = 0; byte < width; ++byte) {
            word |= static_cast<uint32_t>(scales[i / block * width + byte]) << (8 * byte);
        }
        const float scale = std::bit_cast<float>(width == 4 ? word : word << 16);
        const double product = static_cast<double>(get_bits(bytes, i * bits, bits)) * scale;
        values[static_cast<size_t>(i)] = std::isfinite(scale) ? static_cast<float>(product) : kNan;
    }
    return values;
}

}  // namespace

double round_to(const Format& format, double value) {
    if (!std::isfinite(value) || value == 0) {
        return value;
    }
    const int exponent = std::max(std::ilogb(value), format.min_exponent);
    const double unit = std::ldexp(1.0, exponent - (format.precision - 1));
    const double rounded = std::nearbyint(value / unit) * unit;
    if (std::abs(rounded) > format.max_finite) {
        return std::copysign(std::numeric_limits<double>::infinity(), value);
    }
    return std::copysign(rounded, value);
}

double round_up_or_down(const Format& format, double value, int byte) {
    if (value == 0) {
        return value;
    }
    const int exponent = std::max(std::ilogb(value), format.min_exponent);
    const double unit = std::ldexp(1.0, exponent - (format.precision - 1));
    const double steps = std::floor(std::abs(value) / unit + (byte + 0.5) / 256);
    return std::copysign(steps * unit, value);
}

double from_bits(const Format& format, uint16_t bits) {
    const int fraction_bits = format.precision - 1;
    const int exponent_max = (1 << (15 - fraction_bits)) - 1;
    const int exponent = (bits & 0x7FFF) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    double value = 0;
    if (exponent == exponent_max) {
        value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
    } else if (exponent == 0) {
        value = std::ldexp(fraction, format.min_exponent - fraction_bits);
    } else {
        value = std::ldexp((1 << fraction_bits) + fraction,
                           exponent - 1 + format.min_exponent - fraction_bits);
    }
    return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t to_bits(const Format& format, double value) {
    const int fraction_bits = format.precision - 1;
    const int infinity = ((1 << (15 - fraction_bits)) - 1) << fraction_bits;
    if (std::isnan(value)) {
        return static_cast<uint16_t>(infinity | 1 << (fraction_bits - 1));
    }
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::abs(value);
    if (std::isinf(value)) {
        return static_cast<uint16_t>(sign | infinity);
    }
    if (magnitude < std::ldexp(1.0, format.min_exponent)) {
        return static_cast<uint16_t>(
            sign | static_cast<int>(std::ldexp(magnitude, fraction_bits - format.min_exponent)));
    }
    const int exponent = std::ilogb(magnitude);
    const int significand = static_cast<int>(std::ldexp(magnitude, fraction_bits - exponent));
    return static_cast<uint16_t>(
        sign | (((exponent - format.min_exponent) << fraction_bits) + significand));
}

float element(const void* buffer, DType dtype, int64_t i) {
    if (dtype == DType::kFloat32) {
        float value = 0;
        std::memcpy(&value, static_cast<const uint8_t*>(buffer) + 4 * i, 4);
        return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, static_cast<const uint8_t*>(buffer) + 2 * i, 2);
    return static_cast<float>(from_bits(format_of(dtype), bits));
}

void set_element(void* buffer, DType dtype, int64_t i, float value) {
    if (dtype == DType::kFloat32) {
        const uint32_t bits = std::isnan(value) ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
        std::memcpy(static_cast<uint8_t*>(buffer) + 4 * i, &bits, 4);
        return;
    }
    const Format& format = format_of(dtype);
    const uint16_t bits = to_bits(format, round_to(format, value));
    std::memcpy(static_cast<uint8_t*>(buffer) + 2 * i, &bits, 2);
}

int random_byte(const Draw& draw, int64_t i) {
    const auto group = static_cast<uint64_t>(i) / 16;
    uint32_t words[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                         draw.purpose == RandomPurpose::kEncode ? draw.chunk : 0,
                         draw.key.step + (draw.key.step_ptr != nullptr ? *draw.key.step_ptr : 0)};
    threefry(words, {{draw.key.seed, draw.key.tensor, draw.key.rank,
                      static_cast<uint32_t>(draw.purpose)}});
    return static_cast<int>(words[i % 16 / 4] >> (8 * (i % 4)) & 0xFF);
}

namespace {

constexpr Family kFamilies[] = {
    {"bf16", encode_cast, decode_cast},     {"fp16", encode_cast, decode_cast},
    {"int8", encode_blocks, decode_blocks}, {"int4", encode_blocks, decode_blocks},
    {"int2", encode_blocks, decode_blocks},
};

const Family* family_of(const CodecSpec& spec) {
    const auto* found = std::find_if(
        std::begin(kFamilies), std::end(kFamilies),
        [&](const Family& family) { return spec.codec->name == std::string_view(family.codec); });
    return found != std::end(kFamilies) ? found : nullptr;
}

}  // namespace

bool knows(const CodecSpec& spec) {
    return family_of(spec) != nullptr;
}

std::optional<std::vector<uint8_t>> encode(const CodecSpec& spec,
                                           const std::vector<float>& p,
                                           const Draw& draw,
                                           DType dtype) {
    const Family* family = family_of(spec);
    if (family == nullptr) {
        return std::nullopt;
    }
    return p.empty() ? std::vector<uint8_t>{} : family->encode(spec, p, draw, dtype);
}

std::vector<float> decode(const CodecSpec& spec, const uint8_t* bytes, int64_t count, DType dtype) {
    const Family* family = family_of(spec);
    if (family == nullptr || count == 0) {
        return {};
    }
    return family->decode(spec, bytes, count, dtype);
}

}  // namespace slimwire::reference
