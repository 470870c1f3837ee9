// The block integers of codecs/FORMAT.md, slowly: one element, one bit, one rounding at a time.
#include "tests/codecs/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codecs/threefry.h"

namespace slimwire::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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

void put_bits(uint8_t* bytes, int64_t bit, int width, int value) {
    for (int i = 0; i < width; ++i, ++bit) {
        if ((static_cast<unsigned>(value) >> i & 1) != 0) {
            bytes[bit / 8] |= static_cast<uint8_t>(1 << (bit % 8));
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

void put_word(uint8_t* to, int bytes, uint32_t value) {
    for (int i = 0; i < bytes; ++i) {
        to[i] = static_cast<uint8_t>(value >> (8 * i));
    }
}

uint32_t get_word(const uint8_t* from, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
        value |= static_cast<uint32_t>(from[i]) << (8 * i);
    }
    return value;
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
        const bool finite = std::all_of(first, last, [](float v) { return std::isfinite(v); });
        double largest = 0;
        for (auto v = first; v != last; ++v) {
            largest = std::max(largest, std::abs(double{*v}));
        }
        double scale = 0;
        if (!finite) {
            scale = kNan;
        } else if (largest > 0) {
            scale = static_cast<float>(largest / q);
            scale = form.scale_bytes == 4 ? scale : up_to_bfloat16(scale == 0 ? 0x1p-149 : scale);
            scale = std::clamp(scale, 0x1p-126, scale_cap(q));
            const double inverse = static_cast<float>(1.0 / scale);
            for (int64_t i = 0; i < form.block; ++i) {
                const double exact = first[i] * inverse;
                double code = std::nearbyint(exact);
                if (form.stochastic) {
                    const double fixed = std::nearbyint(exact * 256);
                    code = std::floor((fixed + random_byte(draw, begin + i)) / 256);
                    code = std::clamp<double>(code, -q, q);
                }
                put_bits(bytes.data(), (begin + i) * form.bits, form.bits, static_cast<int>(code));
            }
        }
        const uint32_t word =
            std::isnan(scale) ? 0x7FC00000u : std::bit_cast<uint32_t>(static_cast<float>(scale));
        put_word(bytes.data() + form.scales_at + b * form.scale_bytes, form.scale_bytes,
                 form.scale_bytes == 4 ? word : word >> 16);
    }
    return bytes;
}

// The values of a complete encoding, with the scales times `factor`.
std::vector<float> dequantise(const Form& form, const uint8_t* bytes, float factor) {
    std::vector<float> values(static_cast<size_t>(form.padded));
    for (int64_t i = 0; i < form.padded; ++i) {
        const int64_t b = i / form.block;
        const uint32_t word =
            get_word(bytes + form.scales_at + b * form.scale_bytes, form.scale_bytes);
        const float scale = std::bit_cast<float>(form.scale_bytes == 4 ? word : word << 16);
        const double product =
            static_cast<double>(get_bits(bytes, i * form.bits, form.bits)) * (scale * factor);
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
