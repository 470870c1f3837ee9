// The block integers of codecs/FORMAT.md, slowly: one element, one bit, one rounding at a time.
#include "tests/codecs/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/threefry.h"

namespace slimwire::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int largest_code_of(int bits) {
    return static_cast<int>(std::ldexp(1.0, bits - 1)) - 1;
}

bool is_negative(uint32_t seed, int64_t i) {
    uint32_t x[4] = {static_cast<uint32_t>(i / 128), 0, 0, 0};
    threefry(x, RandomWords{{seed, 0, 0, 2}});
    return (x[i % 128 / 32] >> (i % 32) & 1) != 0;
}

// What the parameters mean, and the planes of an encoding.
struct Form {
    explicit Form(const CodecSpec& spec, int64_t count)
        : bits(spec.params.bits), block(spec.params.block), rotate(spec.params.rotate) {
        const int64_t unit = std::max(block, rotate);
        padded = (count + unit - 1) / unit * unit;
        blocks = padded / block;
        stochastic = spec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic);
        scale_bytes = spec.params.scale_type == static_cast<uint8_t>(ScaleType::kFloat32) ? 4 : 2;
        scales_at = padded * bits / 8;
        total_bytes = scales_at + blocks * scale_bytes;
    }

    int bits;
    int64_t block, rotate, padded = 0, blocks = 0;
    bool stochastic = false;
    int scale_bytes = 0;
    int64_t scales_at = 0, total_bytes = 0;
};

// H of every group in place; every sum and difference is rounded to fp32.
void butterflies(std::vector<float>& x, int64_t rotate) {
    for (int64_t stride = 1; stride < rotate; stride *= 2) {
        for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
            if (i / stride % 2 == 0) {
                float& a = x[static_cast<size_t>(i)];
                float& b = x[static_cast<size_t>(i + stride)];
                const float sum = a + b;
                b = a - b;
                a = sum;
            }
        }
    }
}

void apply_signs(std::vector<float>& x, const CodecSpec& spec) {
    std::vector<bool> negative;
    for (int64_t i = 0; i < spec.params.rotate; ++i) {
        negative.push_back(is_negative(spec.params.seed, i));
    }
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = negative[i % spec.params.rotate] ? -x[i] : x[i];
    }
}

// x as an element of the user's type.
float in_type(DType dtype, float x) {
    float bits = 0;
    set_element(&bits, dtype, 0, x);
    return element(&bits, dtype, 0);
}

// Quantises y, which is complete.
std::vector<uint8_t> quantise(const Form& form, const std::vector<float>& y, const Draw& draw) {
    const int q = largest_code_of(form.bits);
    std::vector<uint8_t> bytes(static_cast<size_t>(form.total_bytes));
    for (int64_t b = 0; b < form.blocks; ++b) {
        const int64_t begin = b * form.block;
        const auto first = y.begin() + begin;
        const auto last = first + form.block;
        double largest = 0;
        for (auto v = first; v != last; ++v) {
            largest = std::isfinite(*v) ? std::max(largest, std::abs(double{*v})) : kNan;
            if (std::isnan(largest)) {
                break;
            }
        }
        const double scale = block_scale(largest, q, form.scale_bytes);
        if (scale > 0) {
            const double inverse = static_cast<float>(1.0 / scale);
            for (int64_t i = 0; i < form.block; ++i) {
                const double exact = first[i] * inverse;
                double code = std::nearbyint(exact);
                if (form.stochastic) {
                    const double fixed = std::nearbyint(exact * 256);
                    code = std::floor((fixed + random_byte(draw, begin + i)) / 256);
                    code = std::clamp<double>(code, -q, q);
                }
                put_bits(bytes.data(), (begin + i) * form.bits, form.bits,
                         static_cast<uint32_t>(static_cast<int>(code)));
            }
        }
        const int scale_bits = 8 * form.scale_bytes;
        put_bits(bytes.data(), 8 * form.scales_at + b * scale_bits, scale_bits,
                 scale_word(scale) >> (32 - scale_bits));
    }
    return bytes;
}

// The values of a complete encoding, with the scales times `factor`.
std::vector<float> dequantise(const Form& form, const uint8_t* bytes, float factor) {
    std::vector<float> values(static_cast<size_t>(form.padded));
    for (int64_t i = 0; i < form.padded; ++i) {
        const int scale_bits = 8 * form.scale_bytes;
        const uint32_t stored =
            get_bits(bytes, 8 * form.scales_at + i / form.block * scale_bits, scale_bits);
        const float scale = float_of(stored << (32 - scale_bits));
        const int code =
            static_cast<int>(get_bits(bytes, i * form.bits, form.bits) << (32 - form.bits)) >>
            (32 - form.bits);
        const double product = static_cast<double>(code) * (scale * factor);
        values[static_cast<size_t>(i)] = std::isfinite(scale) ? static_cast<float>(product) : kNan;
    }
    return values;
}

std::vector<float> unrotate(const CodecSpec& spec, std::vector<float> z) {
    butterflies(z, spec.params.rotate);
    apply_signs(z, spec);
    return z;
}

// Under a rotation nothing is an element of the user's type yet.
std::vector<float> sum_quantised(const Form& form,
                                 const std::vector<const uint8_t*>& sources,
                                 DType dtype,
                                 double input_scale = 1) {
    const DType type = form.rotate != 0 ? DType::kFloat32 : dtype;
    std::vector<float> sum(static_cast<size_t>(form.padded), -0.0f);
    for (const uint8_t* const source : sources) {
        const std::vector<float> values = within(type, dequantise(form, source, 1.0f));
        for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] = static_cast<float>(input_scale * values[i] + sum[i]);
        }
    }
    return sum;
}

void take_where_infinite(std::vector<float>& x, const std::vector<float>& from) {
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = std::isfinite(x[i]) ? x[i] : from[i];
    }
}

// R times each; finite ones stay so.
std::vector<float> limited_wholes(const Form& form, std::vector<float> parts) {
    for (float& part : parts) {
        const float whole = part * static_cast<float>(form.rotate);
        const float most = std::copysign(std::numeric_limits<float>::max(), part);
        part = std::isfinite(part) && !std::isfinite(whole) ? most : whole;
    }
    return parts;
}

std::vector<float> over_rotation(const Form& form, std::vector<float> y) {
    for (float& one : y) {
        one /= static_cast<float>(form.rotate);
    }
    return y;
}

}  // namespace

std::vector<uint8_t> encode_block_int(const CodecSpec& spec,
                                      const std::vector<float>& p,
                                      const Draw& draw,
                                      DType) {
    const Form form(spec, static_cast<int64_t>(p.size()));
    std::vector<float> y = p;
    y.resize(static_cast<size_t>(form.padded));
    if (form.rotate != 0) {
        std::vector<float> parts = over_rotation(form, y);
        for (std::vector<float>* const x : {&y, &parts}) {
            apply_signs(*x, spec);
            butterflies(*x, form.rotate);
        }
        const std::vector<float> wholes = limited_wholes(form, parts);
        for (auto group = y.begin(); group != y.end(); group += form.rotate) {
            if (!std::all_of(group, group + form.rotate,
                             [](float v) { return std::isfinite(v); })) {
                std::copy_n(wholes.begin() + (group - y.begin()), form.rotate, group);
            }
        }
    }
    return quantise(form, y, draw);
}

std::vector<float> decode_block_int(const CodecSpec& spec,
                                    const uint8_t* bytes,
                                    int64_t count,
                                    DType) {
    const Form form(spec, count);
    std::vector<float> values;
    if (form.rotate != 0) {
        values = unrotate(spec, dequantise(form, bytes, 1.0f / static_cast<float>(form.rotate)));
    } else {
        values = dequantise(form, bytes, 1.0f);
    }
    values.resize(static_cast<size_t>(count));
    return values;
}

std::vector<float> sum_block_int(const CodecSpec& spec,
                                 const std::vector<const uint8_t*>& sources,
                                 int64_t count,
                                 DType dtype) {
    const Form form(spec, count);
    std::vector<float> sum = sum_quantised(form, sources, dtype);
    if (form.rotate != 0) {
        sum = over_rotation(form, sum);
        take_where_infinite(sum, sum_quantised(form, sources, dtype, 1.0 / form.rotate));
        sum = unrotate(spec, sum);
    }
    sum.resize(static_cast<size_t>(count));
    return sum;
}

std::vector<uint8_t> reduce_block_int(const CodecSpec& spec,
                                      const std::vector<const uint8_t*>& sources,
                                      int64_t count,
                                      float factor,
                                      std::vector<float>* residual,
                                      const Draw& draw,
                                      DType dtype) {
    const Form form(spec, count);
    std::vector<float> sum;
    if (form.rotate != 0 && residual == nullptr) {
        sum = sum_quantised(form, sources, dtype);
        std::vector<float> parts = sum_quantised(form, sources, dtype, 1.0 / form.rotate);
        for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] *= factor;
            parts[i] *= factor;
        }
        std::vector<float> z = over_rotation(form, sum);
        take_where_infinite(z, parts);
        take_where_infinite(sum, limited_wholes(form, parts));
        for (float& one : z) {
            one *= 0x1p-10f;  // so that only an x is infinite
        }
        const std::vector<float> x = unrotate(spec, z);
        for (size_t i = 0; i < x.size(); ++i) {
            if (!std::isfinite(in_type(dtype, 0x1p10f * x[i]))) {
                const size_t first = i - i % static_cast<size_t>(form.rotate);
                std::fill_n(sum.begin() + static_cast<std::ptrdiff_t>(first), form.rotate,
                            std::numeric_limits<float>::infinity());
            }
        }
        return quantise(form, sum, draw);
    }
    sum = sum_block_int(spec, sources, count, dtype);
    std::vector<float> p(static_cast<size_t>(count));
    for (size_t i = 0; i < p.size(); ++i) {
        p[i] = factor * sum[i];
        p[i] = std::isfinite(in_type(dtype, p[i])) ? p[i] : in_type(dtype, p[i]);
        p[i] += residual != nullptr ? (*residual)[i] : 0.0f;
    }
    const std::vector<uint8_t> bytes = encode_block_int(spec, p, draw, DType::kFloat32);
    if (residual != nullptr) {
        const std::vector<float> decoded =
            within(dtype, decode_block_int(spec, bytes.data(), count, dtype));
        for (size_t i = 0; i < p.size(); ++i) {
            const float lost = p[i] - decoded[i];
            (*residual)[i] = std::isfinite(lost) ? lost : (*residual)[i];
        }
    }
    return bytes;
}

}  // namespace slimwire::reference
