#include "tests/codecs/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

namespace slimwire::reference {
namespace {

const Format& format_of(DType dtype) {
    return dtype == DType::kFloat16 ? kFloat16 : kBfloat16;
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

void put_bits(uint8_t* bytes, int64_t at, int width, uint32_t value) {
    for (int i = 0; i < width; ++i, ++at) {
        bytes[at / 8] |= static_cast<uint8_t>((value >> i & 1) << (at % 8));
    }
}

uint32_t get_bits(const uint8_t* bytes, int64_t at, int width) {
    uint32_t value = 0;
    for (int i = 0; i < width; ++i, ++at) {
        value |= static_cast<uint32_t>(bytes[at / 8] >> (at % 8) & 1) << i;
    }
    return value;
}

uint32_t scale_word(double scale) {
    return std::isnan(scale) ? 0x7FC00000u : std::bit_cast<uint32_t>(static_cast<float>(scale));
}

double block_scale(double largest, double most, int bytes) {
    if (largest == 0 || !std::isfinite(largest)) {
        return largest == 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
    }
    const auto to_bfloat16 = [](double value, double (*direction)(double)) {
        const int exponent = std::max(std::ilogb(value), kBfloat16.min_exponent);
        const double unit = std::ldexp(1.0, exponent - (kBfloat16.precision - 1));
        return direction(value / unit) * unit;
    };
    double scale = static_cast<float>(largest / most);
    scale = bytes == 2 && scale > 0 ? to_bfloat16(scale, std::ceil) : scale;
    const double cap = static_cast<double>(std::numeric_limits<float>::max()) / most;
    return std::clamp(scale, 0x1p-126, to_bfloat16(cap, std::floor));
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

std::vector<float> within(DType dtype, std::vector<float> values) {
    const auto most = static_cast<float>(
        dtype == DType::kFloat32 ? std::numeric_limits<float>::max() : format_of(dtype).max_finite);
    for (float& value : values) {
        value = std::isfinite(value) ? std::clamp(value, -most, most) : value;
    }
    return values;
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
    {"bf16", encode_cast, decode_cast},
    {"fp16", encode_cast, decode_cast},
    {"int8", encode_block_int, decode_block_int},
    {"int4", encode_block_int, decode_block_int},
    {"int2", encode_block_int, decode_block_int},
    {"fp8e4m3", encode_block_float, decode_block_float},
    {"fp8e5m2", encode_block_float, decode_block_float},
    {"mxfp4", encode_block_float, decode_block_float},
    {"nvfp4", encode_block_float, decode_block_float},
    {"sign", encode_quantizer, decode_quantizer},
    {"ternary", encode_quantizer, decode_quantizer},
    {"natural", encode_quantizer, decode_quantizer},
    {"qsgd", encode_quantizer, decode_quantizer},
    {"bounded", encode_bounded, decode_bounded},
    {"topk", encode_sparse, decode_sparse},
    {"threshold", encode_sparse, decode_sparse},
    {"blocktopk", encode_sparse, decode_sparse},
    {"rowtopk", encode_sparse, decode_sparse},
    {"randomk", encode_sparse, decode_sparse},
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
    return within(dtype, family->decode(spec, bytes, count, dtype));
}

}  // namespace slimwire::reference
