// What only the quantizers promise: literal bytes, scales by their definitions, contraction
// of signs, means and variances of what is drawn, rounding to powers of two, sizes. Errors on
// Gaussian data are in accuracy_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/numeric.h"
#include "tests/codecs/worked_example.h"

namespace slimwire::testing {
namespace {

std::vector<float> sent_of(const CodecSpec& spec, const std::vector<float>& values) {
    return decoding_of(spec, encoding_of(spec, values), static_cast<int64_t>(values.size()));
}

std::vector<float> bell_shaped(int64_t count, std::mt19937& random) {
    return values_of(random_input(DType::kFloat32, count, 1.0, random), DType::kFloat32, count);
}

TEST(Quantizer, GoldenBytesOfTheWorkedExample) {
    on_all_isas([] {
        // The mean of 17 magnitudes that add up to 25.19, in the order of the lanes: 3FBDAA78.
        EXPECT_EQ(encoding_of(spec_of("sign:block=32"), kExample),
                  (Bytes{0x54, 0x49, 0x01, 0x00, 0x78, 0xAA, 0xBD, 0x3F}));
        EXPECT_EQ(encoding_of(spec_of("ternary:block=16,rounding=nearest"), kExample),
                  (Bytes{0x00, 0x40, 0xD7, 0x00, 0x03, 0x00, 0x00, 0x00,  //
                         0x00, 0x00, 0x60, 0x40, 0x00, 0x00, 0x00, 0x40}));
        // Powers under 4 and 2: 1.5 and 3 lie half way and go up.
        EXPECT_EQ(encoding_of(spec_of("natural:bits=4,block=16,rounding=nearest"), kExample),
                  (Bytes{0x40, 0x5C, 0x6D, 0x7E, 0x7F, 0xF7, 0x33, 0x3A,  //
                         0x0F, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                         0x00, 0x00, 0x80, 0x40, 0x00, 0x00, 0x00, 0x40}));
        EXPECT_EQ(
            encoding_of(spec_of("qsgd:levels=7,scale=max,block=16,rounding=nearest"), kExample),
            (Bytes{0x10, 0x2F, 0x3E, 0x6D, 0x7A, 0x97, 0x00, 0x10,  //
                   0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                   0x00, 0x00, 0x00, 0x3F, 0x25, 0x49, 0x92, 0x3E}));
    });
}

TEST(Quantizer, ScalesAreWhatTheirNamesSay) {
    std::mt19937 random(test_seed());
    on_all_isas([&] {
        for (const int64_t block : {32, 64, 128, 256, 512, 2048}) {
            const int64_t count = block + block / 2 + 3;  // the last block is short
            const std::vector<float> p = bell_shaped(count, random);
            for (int64_t begin = 0; begin < count; begin += block) {
                const int64_t end = std::min(begin + block, count);
                double sum = 0;
                double squares = 0;
                double most = 0;
                for (int64_t i = begin; i < end; ++i) {
                    const double x = std::abs(double{p[static_cast<size_t>(i)]});
                    sum += x;
                    squares += x * x;
                    most = std::max(most, x);
                }
                const auto n = static_cast<double>(end - begin);
                const struct {
                    std::string spec;
                    double scale;
                } rows[] = {
                    {"sign", sum / n},
                    {"sign:scale=l2", std::sqrt(squares / n)},
                    {"ternary", most},
                    {"ternary:scale=clip", std::min(most, 2.5 * std::sqrt(squares / n))},
                    {"qsgd", std::sqrt(squares) / 127},
                    {"qsgd:levels=9", std::sqrt(squares) / 9},
                    {"qsgd:scale=max", most / 127},
                    {"natural", std::exp2(std::ceil(std::log2(most)))},
                };
                for (const auto& row : rows) {
                    const char separator = row.spec.find(':') == std::string::npos ? ':' : ',';
                    const CodecSpec spec =
                        spec_of(row.spec + separator + "block=" + std::to_string(block));
                    const Bytes bytes = encoding_of(spec, p);
                    const int64_t blocks = (count + block - 1) / block;
                    float scale = 0;
                    std::memcpy(&scale,
                                bytes.data() + bytes.size() -
                                    static_cast<size_t>(4 * (blocks - begin / block)),
                                4);
                    ASSERT_NEAR(scale / row.scale, 1, 1e-5) << spec.to_string() << " at " << begin;
                }
            }
        }
    });
}

// Sums that overflow, and squares that would: a finite block stays finite and right.
TEST(Quantizer, ScalesOfTheEndsOfTheRange) {
    on_all_isas([] {
        for (const double magnitude : {0x1p-140, 0x1p-126, 0x1p-100, 0x1p100, 0x1p127}) {
            for (const char* name : {"sign:block=", "sign:scale=l2,block=", "qsgd:block=",
                                     "ternary:scale=clip,block=", "natural:block="}) {
                for (const char* block : {"32", "256", "2048"}) {
                    const CodecSpec spec = spec_of(std::string(name) + block);
                    const std::vector<float> p(static_cast<size_t>(spec.params.block),
                                               static_cast<float>(-1.5 * magnitude));
                    double sum = 0;
                    for (const float value : sent_of(spec, p)) {
                        ASSERT_TRUE(std::isfinite(value));
                        sum += value;
                    }
                    // Powers of two are drawn, half of each, those beyond the largest not at all;
                    // the steps of levels end at 2^-126.
                    const bool drawn = name[0] != 's';
                    if (drawn && name[0] != 'n' && magnitude < 0x1p-130) {
                        continue;
                    }
                    if (magnitude < 0x1p120 || !drawn) {
                        ASSERT_NEAR(sum / spec.params.block / (-1.5 * magnitude), 1,
                                    drawn ? 0.7 : 1e-5)
                            << spec.to_string() << " " << magnitude;
                    }
                }
            }
        }
    });
}

// |x - C(x)|^2 = |x|^2 - |x|_1^2 / d: the compressor of Karimireddy et al. 2019 (lemma 8), in which
// |x|_1^2 / (d |x|^2) is what error feedback converges with.
TEST(Quantizer, SignContractsAsItsPaperSays) {
    std::mt19937 random(test_seed());
    on_all_isas([&] {
        for (const int64_t block : {32, 256, 1024}) {
            const CodecSpec spec = spec_of("sign:block=" + std::to_string(block));
            std::vector<float> p = bell_shaped(block, random);
            for (int heavy = 0; heavy < 3; ++heavy) {  // and with a tail
                p[static_cast<size_t>(heavy)] *= static_cast<float>(heavy * heavy * 40);
                double sum = 0;
                double squares = 0;
                double left = 0;
                const std::vector<float> sent = sent_of(spec, p);
                for (size_t i = 0; i < p.size(); ++i) {
                    sum += std::abs(double{p[i]});
                    squares += double{p[i]} * p[i];
                    left += std::pow(double{p[i]} - sent[i], 2);
                }
                const double delta = sum * sum / (static_cast<double>(block) * squares);
                ASSERT_NEAR(left / squares, 1 - delta, 1e-4) << block;
                ASSERT_GT(delta, 1.0 / static_cast<double>(block));
            }
        }
    });
}

// A block with the largest magnitude 1 and one value otherwise, drawn a million times: mean within
// five standard deviations (and the 2^-17 of a step that draws resolve), and the variance of the
// definition, (up - x) (x - down).
struct Drawn {
    const char* spec;
    float value;
    double down;
    double up;
};
class QuantizerDraws : public ::testing::TestWithParam<Drawn> {};

TEST_P(QuantizerDraws, HaveTheMeanAndTheVarianceOfTheirDefinition) {
    const Drawn& row = GetParam();
    on_all_isas([&] {
        const CodecSpec spec = spec_of(row.spec);
        constexpr int64_t kCount = 1 << 14;
        constexpr uint32_t kSteps = 64;
        std::vector<float> p(kCount, row.value);
        for (size_t i = 0; i < p.size(); i += spec.params.block) {
            p[i] = 1.0f;
        }
        const Guarded input = floats(p);
        double sum = 0;
        double squares = 0;
        double draws = 0;
        Guarded output(4 * kCount);
        for (uint32_t step = 0; step < kSteps; ++step) {
            const Encoded encoded = encode(spec, DType::kFloat32, input, kCount, nullptr, 1.0f,
                                           nullptr, {.seed = test_seed(), .step = step});
            decode(spec, DType::kFloat32, encoded.bytes.data(), kCount, output);
            for (int64_t i = 0; i < kCount; ++i) {
                if (i % spec.params.block != 0) {
                    const double error =
                        double{reference::element(output.data(), DType::kFloat32, i)} - row.value;
                    ASSERT_TRUE(std::abs(error - (row.up - row.value)) < 1e-6 ||
                                std::abs(error - (row.down - row.value)) < 1e-6)
                        << error;
                    sum += error;
                    squares += error * error;
                    draws += 1;
                }
            }
        }
        ASSERT_GE(draws, 1e6 * 0.9);
        const double variance = (row.up - row.value) * (row.value - row.down);
        const double step = row.up - row.down;
        EXPECT_LE(std::abs(sum / draws), 5 * std::sqrt(variance / draws) + step * 0x1p-17);
        const double fourth = variance * step * step;  // at least the fourth moment
        EXPECT_NEAR(squares / draws, variance,
                    5 * std::sqrt(fourth / draws) + step * step * 0x1p-16);
    });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    QuantizerDraws,
    ::testing::Values(Drawn{"ternary", 0.3f, 0, 1},
                      Drawn{"ternary", -0.3f, -1, 0},
                      Drawn{"ternary", 0.001f, 0,
                            1},  // below the 256th part that one byte would resolve
                      Drawn{"qsgd:scale=max,levels=7", 0.5f, 3.0 / 7, 4.0 / 7},
                      Drawn{"qsgd:scale=max,levels=127", -0.0001f, -1.0 / 127, 0},
                      Drawn{"qsgd:scale=max,levels=31", 0.99f, 30.0 / 31, 1},
                      Drawn{"natural", 0.3f, 0.25, 0.5},
                      Drawn{"natural", -0x1.2p-90f, -0x1p-89, -0x1p-90},
                      Drawn{"natural:bits=4", 0.7f, 0.5, 1},
                      Drawn{"natural:bits=4", 0.01f, 0, 0x1p-6},
                      Drawn{"natural:bits=4", -0.0002f, -0x1p-6, 0}));

TEST(Quantizer, PowersAreTheNearestOnes) {
    std::mt19937 random(test_seed());
    const std::vector<float> p = bell_shaped(4096, random);
    const std::vector<float> sent = sent_of(spec_of("natural:rounding=nearest"), p);
    for (size_t i = 0; i < p.size(); ++i) {
        int exponent = 0;
        ASSERT_EQ(std::abs(std::frexp(sent[i], &exponent)), 0.5f) << sent[i];
        ASSERT_LE(std::abs(p[i] - sent[i]), std::abs(p[i]) / 3 * 1.000001f) << p[i];
        ASSERT_EQ(std::signbit(p[i]), std::signbit(sent[i]));
    }
}

}  // namespace
}  // namespace slimwire::testing
