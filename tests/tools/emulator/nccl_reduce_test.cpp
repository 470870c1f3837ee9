// The arithmetic of the emulated NCCL: conversions of every code of the small float types against
// their definition, rounding at every midpoint, special values, scaling. What integers do, and
// every operator, the sweep shows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codecs/base/element_types.h"
#include "tools/emulator/nccl/execution/reduce.h"

namespace slimwire::emu {
namespace {

using namespace element_types;

// The value of a finite code, from the definition of a float format.
double defined_value(unsigned code, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
    const int exponent = static_cast<int>(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return (code >> (exponent_bits + mantissa_bits) & 1) != 0 ? -magnitude : magnitude;
}

// Every finite code loads to its value and stores back; between two neighbours the midpoint goes to
// the even one and everything else to the nearer one.
template <class Element>
void expect_exact_conversions(int exponent_bits, int mantissa_bits, unsigned largest) {
    using Storage = typename Element::Storage;
    const unsigned sign_bit = 1u << (exponent_bits + mantissa_bits);
    for (const unsigned sign : {0u, sign_bit}) {
        for (unsigned magnitude = 0; magnitude <= largest; ++magnitude) {
            const auto code = static_cast<Storage>(sign | magnitude);
            const float value = Element::load(code);
            ASSERT_EQ(value, defined_value(code, exponent_bits, mantissa_bits)) << unsigned{code};
            ASSERT_EQ(Element::store(value), code);
            if (magnitude == largest) {
                continue;
            }
            const auto next = static_cast<Storage>(code + 1);
            const double middle =
                (static_cast<double>(value) + static_cast<double>(Element::load(next))) / 2;
            const auto exact = static_cast<float>(middle);
            ASSERT_EQ(exact, middle);
            const float beyond = static_cast<float>(Element::load(next));
            ASSERT_EQ(Element::store(exact), magnitude % 2 == 0 ? code : next) << unsigned{code};
            ASSERT_EQ(Element::store(std::nextafter(exact, value)), code) << unsigned{code};
            ASSERT_EQ(Element::store(std::nextafter(exact, beyond)), next) << unsigned{code};
        }
    }
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Element, half) {
    expect_exact_conversions<Half>(5, 10, 0x7bff);
    EXPECT_EQ(Half::load(0x7c00), kInf);
    EXPECT_EQ(Half::load(0xfc00), -kInf);
    EXPECT_TRUE(std::isnan(Half::load(0x7c01)));
    EXPECT_EQ(Half::store(kInf), 0x7c00);
    EXPECT_EQ(Half::store(65519.0f), 0x7bff);
    EXPECT_EQ(Half::store(65520.0f), 0x7c00);
    EXPECT_EQ(Half::store(-1e30f), 0xfc00);
    EXPECT_TRUE(std::isnan(Half::load(Half::store(kNan))));
}

TEST(Element, bfloat) {
    // Midpoints need one bit more than the 8 of the mantissa: exact in fp32.
    expect_exact_conversions<Bfloat>(8, 7, 0x7f7f);
    EXPECT_EQ(Bfloat::store(kInf), 0x7f80);
    EXPECT_EQ(Bfloat::store(3.4028235e38f), 0x7f80);
    EXPECT_TRUE(std::isnan(Bfloat::load(Bfloat::store(kNan))));
    const uint32_t quiet_in_low_bits = 0x7f800001u;
    EXPECT_TRUE(std::isnan(Bfloat::load(Bfloat::store(std::bit_cast<float>(quiet_in_low_bits)))));
}

TEST(Element, float8) {
    expect_exact_conversions<Float8E4M3>(4, 3, 0x7e);
    expect_exact_conversions<Float8E5M2>(5, 2, 0x7b);
    // Beyond the largest finite value: saturated, as CUDA's conversion does.
    EXPECT_EQ(Float8E4M3::store(1e6f), 0x7e);
    EXPECT_EQ(Float8E4M3::store(-kInf), 0xfe);
    EXPECT_EQ(Float8E5M2::store(1e6f), 0x7b);
    EXPECT_EQ(Float8E4M3::store(kNan), 0x7f);
    EXPECT_TRUE(std::isnan(Float8E4M3::load(0x7f)));
    EXPECT_EQ(Float8E5M2::load(0x7c), kInf);
    EXPECT_TRUE(std::isnan(Float8E5M2::load(0x7d)));
    EXPECT_TRUE(std::isnan(Float8E5M2::load(Float8E5M2::store(kNan))));
}

template <class T>
std::vector<T> reduced(DType type,
                       ReduceOp op,
                       std::vector<T> a,
                       const std::vector<T>& b,
                       const PreScale& scale = {}) {
    reduce_elements(type, op, a.data(), a.data(), b.data(), a.size(), scale);
    return a;
}

TEST(Reduce, a_nan_survives_sums_and_loses_against_numbers_in_extremes) {
    const auto sum = reduced<float>(DType::kFloat32, ReduceOp::kSum, {kNan, 1, kInf}, {1, kNan, 1});
    EXPECT_TRUE(std::isnan(sum[0]) && std::isnan(sum[1]));
    EXPECT_EQ(sum[2], kInf);
    EXPECT_EQ(reduced<float>(DType::kFloat32, ReduceOp::kMax, {kNan, 1}, {2, kNan}),
              (std::vector<float>{2, 1}));
    EXPECT_EQ(reduced<double>(DType::kFloat64, ReduceOp::kMin, {kNan, 1}, {2, kNan}),
              (std::vector<double>{2, 1}));
}

TEST(Reduce, the_scaled_input_is_rounded_before_it_is_reduced) {
    const PreScale third = one_over(DType::kFloat16, 3);
    ASSERT_TRUE(third.enabled);
    uint16_t factor = 0;
    memcpy(&factor, third.element, sizeof factor);
    EXPECT_EQ(factor, Half::store(1.0f / 3));
    const uint16_t ten = Half::store(10);
    const uint16_t scaled = Half::store(10 * Half::load(factor));
    EXPECT_EQ(reduced<uint16_t>(DType::kFloat16, ReduceOp::kSum, {ten}, {ten}, third)[0],
              Half::store(10 + Half::load(scaled)));
}

}  // namespace
}  // namespace slimwire::emu
