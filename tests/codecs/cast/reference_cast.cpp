// The casts of codecs/FORMAT.md by real arithmetic: bf16, fp16.
#include <algorithm>
#include <cmath>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

const Format& target_of(const CodecSpec& spec) {
    return static_cast<DType>(spec.params.target) == DType::kFloat16 ? kFloat16 : kBfloat16;
}

}  // namespace

std::vector<uint8_t> encode_cast(const CodecSpec& spec,
                                 const std::vector<float>& p,
                                 const Draw& draw,
                                 DType) {
    const Format& format = target_of(spec);
    const bool stochastic = spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
    std::vector<uint8_t> bytes(2 * p.size());
    for (size_t i = 0; i < p.size(); ++i) {
        double value = p[i];
        if (std::isfinite(value)) {
            const bool saturates = spec.params.scale_type != 0 || format.max_finite > 65504;
            if (!saturates && std::isinf(round_to(format, value))) {
                value = round_to(format, value);
            }
        }
        if (std::isfinite(value)) {
            value = std::clamp(value, -format.max_finite, format.max_finite);
            value = stochastic ? round_up_or_down(format, value,
                                                  random_byte(draw, static_cast<int64_t>(i)))
                               : round_to(format, value);
        }
        const uint16_t bits = to_bits(format, value);
        bytes[2 * i] = static_cast<uint8_t>(bits & 0xFF);
        bytes[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
    }
    return bytes;
}

std::vector<float> decode_cast(const CodecSpec& spec, const uint8_t* bytes, int64_t count, DType) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const auto bits = static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
        values[static_cast<size_t>(i)] = static_cast<float>(from_bits(target_of(spec), bits));
    }
    return values;
}

}  // namespace slimwire::reference
