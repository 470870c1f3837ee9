// The quantizers of codecs/FORMAT.md, element by element. Only the sums of a block are fp32
// in the order that is written there; what follows is real arithmetic with the roundings it names.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

constexpr double kLargest = std::numeric_limits<float>::max();

bool is(const CodecSpec& spec, const char* name) {
    return std::string_view(spec.codec->name) == name;
}
QuantizerScale scale_of(const CodecSpec& spec) {
    return static_cast<QuantizerScale>(spec.params.scale_type);
}

// Adds in lanes, the block's elements i, i + 256, ... in lane i, then upper to lower halves.
template <class Term>
float sum_of(const std::vector<float>& p, size_t block, Term term) {
    std::vector<float> lanes(std::min<size_t>(block, 256), 0.0f);
    for (size_t i = 0; i < p.size(); ++i) {
        float& lane = lanes[i % lanes.size()];
        lane = term(p[i], lane);
    }
    while (lanes.size() > 1) {
        const size_t half = lanes.size() / 2;
        for (size_t i = 0; i < half; ++i) {
            lanes[i] += lanes[i + half];
        }
        lanes.resize(half);
    }
    return lanes[0];
}

float mean_of(const std::vector<float>& p, size_t block) {
    const auto n = static_cast<float>(p.size());
    const float plain = sum_of(p, block, [](float x, float sum) { return sum + std::abs(x); });
    if (std::isfinite(plain)) {
        return plain / n;
    }
    const float down =
        sum_of(p, block, [](float x, float sum) { return sum + std::abs(x) * 0x1p-12f; });
    return static_cast<float>(std::min(static_cast<double>(down / n) * 4096, kLargest));
}

// The norm, or of `mean` squares the root of their mean.
float norm_of(const std::vector<float>& p, size_t block, bool mean) {
    float most = 0;
    for (const float x : p) {
        most = std::max(most, std::abs(x));
    }
    const int exponent = most == 0 ? -126 : std::clamp(std::ilogb(most), -126, 126);
    const auto down = static_cast<float>(std::ldexp(1.0, -exponent));
    float sum = sum_of(p, block, [down](float x, float lane) {
        const float y = x * down;
        return std::fma(y, y, lane);
    });
    if (mean) {
        sum /= static_cast<float>(p.size());
    }
    const double root = std::sqrt(sum);
    return static_cast<float>(std::min(
        static_cast<double>(static_cast<float>(std::ldexp(1.0, exponent))) * root, kLargest));
}

struct Step {
    float scale;
    float inverse;
};
Step step_of(const CodecSpec& spec, const std::vector<float>& p) {
    const size_t block = spec.params.block;
    float most = 0;
    for (const float x : p) {
        most = std::max(most, std::abs(x));
    }
    if (is(spec, "natural")) {
        int exponent = most == 0 ? -126 : std::ilogb(most);
        exponent += std::ldexp(1.0, exponent) < static_cast<double>(most) ? 1 : 0;
        exponent = std::clamp(exponent, -126, 127);
        return {static_cast<float>(std::ldexp(1.0, exponent)),
                static_cast<float>(std::ldexp(1.0, -exponent))};
    }
    float size = most;
    switch (scale_of(spec)) {
        case QuantizerScale::kMean:
            size = mean_of(p, block);
            break;
        case QuantizerScale::kNorm:
            size = norm_of(p, block, is(spec, "sign"));
            break;
        case QuantizerScale::kMax:
            break;
        case QuantizerScale::kClip:
            size = std::min(most, norm_of(p, block, true) * 2.5f);
            break;
    }
    if (is(spec, "sign")) {
        return {size, 0};
    }
    const float scale =
        std::max(std::min(size, 0x1.FEp127f) / static_cast<float>(spec.params.levels), 0x1p-126f);
    return {scale, 1.0f / scale};
}

// The code of a finite p: its low bits.
uint32_t code_of(const CodecSpec& spec, float p, const Step& step, double up) {
    const bool negative = std::signbit(p);
    if (is(spec, "sign")) {
        return negative ? 1 : 0;
    }
    const double exact = static_cast<float>(std::abs(p) * step.inverse);
    if (!is(spec, "natural")) {
        const double y = std::min<double>(exact, spec.params.levels);
        const int code = static_cast<int>(std::floor(y + up));
        return static_cast<uint32_t>(negative ? -code : code) & ((1u << spec.params.bits) - 1);
    }
    const int top = (1 << (spec.params.bits - 1)) - 1;
    const double y = std::min(exact, 1.0);
    const double smallest = std::ldexp(1.0, 1 - top);
    int code = 0;
    if (y < smallest) {
        code = static_cast<int>(std::floor(y / smallest + up));
    } else {
        const int exponent = std::ilogb(y);
        code = exponent + top + static_cast<int>(std::floor(std::ldexp(y, -exponent) - 1 + up));
    }
    return static_cast<uint32_t>(code) + (negative ? static_cast<uint32_t>(top + 1) : 0);
}

double value_of(const CodecSpec& spec, uint32_t code) {
    const int bits = spec.params.bits;
    const uint32_t half = 1u << (bits - 1);
    if (is(spec, "sign")) {
        return code != 0 ? -1 : 1;
    }
    if (!is(spec, "natural")) {
        return code < half ? static_cast<double>(code)
                           : static_cast<double>(code) - static_cast<double>(2 * half);
    }
    const uint32_t magnitude = code % half;
    const double value =
        magnitude == 0 ? 0.0
                       : std::ldexp(1.0, static_cast<int>(magnitude) - static_cast<int>(half - 1));
    return code < half ? value : -value;
}

}  // namespace

std::vector<uint8_t> encode_quantizer(const CodecSpec& spec,
                                      const std::vector<float>& p,
                                      const Draw& draw,
                                      DType) {
    const auto bits = static_cast<size_t>(spec.params.bits);
    const size_t block = spec.params.block;
    const size_t blocks = (p.size() + block - 1) / block;
    const size_t scales = blocks * block * bits / 8;
    std::vector<uint8_t> bytes(scales + 4 * blocks);
    for (size_t b = 0; b < blocks; ++b) {
        const size_t begin = b * block;
        const size_t end = std::min(begin + block, p.size());
        const std::vector<float> own(p.begin() + static_cast<std::ptrdiff_t>(begin),
                                     p.begin() + static_cast<std::ptrdiff_t>(end));
        uint32_t word = 0x7FC00000u;
        if (std::all_of(own.begin(), own.end(), [](float x) { return std::isfinite(x); })) {
            const Step step = step_of(spec, own);
            word = std::bit_cast<uint32_t>(step.scale);
            for (size_t i = begin; i < end; ++i) {
                const auto at = static_cast<int64_t>(i);
                const int drawn = 256 * random_byte(draw, at) + random_byte(draw, at ^ 1);
                const bool stochastic =
                    spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
                const double up = stochastic ? (drawn + 0.5) / 65536 : 0.5;
                const uint32_t code = code_of(spec, p[i], step, up);
                put_bits(bytes.data(), at * spec.params.bits, spec.params.bits, code);
            }
        }
        put_bits(bytes.data(), static_cast<int64_t>(8 * (scales + 4 * b)), 32, word);
    }
    return bytes;
}

std::vector<float> decode_quantizer(const CodecSpec& spec,
                                    const uint8_t* bytes,
                                    int64_t count,
                                    DType) {
    const int64_t bits = spec.params.bits;
    const int64_t block = spec.params.block;
    const uint8_t* scales = bytes + (count + block - 1) / block * block * bits / 8;
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t code = get_bits(bytes, i * bits, spec.params.bits);
        const double scale = float_of(get_bits(scales, i / block * 32, 32));
        values[static_cast<size_t>(i)] = std::isfinite(scale)
                                             ? static_cast<float>(value_of(spec, code) * scale)
                                             : std::numeric_limits<float>::quiet_NaN();
    }
    return values;
}

}  // namespace slimwire::reference
