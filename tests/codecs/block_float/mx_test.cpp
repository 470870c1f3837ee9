// What only the block floats with scales of 8 bits promise: literal bytes, the values of the
// standards, scale rules, rounding at every midpoint, no bias, sizes. Errors on Gaussian data are
// in accuracy_test.cpp.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "codecs/numeric.h"
#include "tests/codecs/worked_example.h"

namespace slimwire::testing {
namespace {

TEST(Mx, GoldenBytesOfTheWorkedExample) {
    // Largest 3.5, so 2^(1 - 2): y = 2 p, of which 6.8, 7 and -7 are cut off at 6.
    EXPECT_EQ(encoding_of(spec_of("mxfp4"), kExample),
              (Bytes{0x20, 0x4A, 0x5C, 0x7D, 0x7F, 0xF7, 0x11, 0x18,  //
                     0x0E, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7E}));
    // With a scale of 1 nothing is.
    EXPECT_EQ(encoding_of(spec_of("mxfp4:scale=ceil"), kExample),
              (Bytes{0x10, 0x29, 0x3A, 0x5B, 0x5D, 0xE6, 0x00, 0x08,  //
                     0x0C, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7F}));
    // Group 3.5 / 2688 = 3AAAAAAB; blocks 448 and 2 / 3.5 * 448 = 256.
    EXPECT_EQ(encoding_of(spec_of("nvfp4"), kExample),
              (Bytes{0x20, 0x3A, 0x5B, 0x7D, 0x7F, 0xF7, 0x11, 0x18,  //
                     0x0F, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                     0xAB, 0xAA, 0xAA, 0x3A, 0x7E, 0x78}));
}

TEST(Mx, CodesAreWorthWhatTheStandardSays) {
    struct Row {
        uint32_t code;
        float value;
    };
    const Row rows[] = {{0x1, 0.5f}, {0x2, 1.0f}, {0x7, 6.0f}, {0xD, -3.0f}};
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        for (const Row& row : rows) {
            const CodecSpec spec = spec_of("mxfp4");
            Bytes bytes(17, static_cast<uint8_t>(row.code << 4 | row.code));
            for (const int exponent : {0, -127, 100}) {
                bytes.back() = static_cast<uint8_t>(127 + exponent);
                for (const float value : decoding_of(spec, bytes, 32)) {
                    ASSERT_TRUE(same_bits(value, std::ldexp(row.value, exponent)))
                        << row.code << " " << exponent << " " << value;
                }
            }
            bytes.back() = 0xFF;
            for (const float value : decoding_of(spec, bytes, 32)) {
                ASSERT_EQ(std::bit_cast<uint32_t>(value), kNanFloat32);
            }
        }
    }
}

TEST(Mx, ScalesFollowTheirRules) {
    struct Row {
        const char* spec;
        float largest;
        int byte;
    };
    const Row rows[] = {{"mxfp4", 4.0f, 127},
                        {"mxfp4", 7.99f, 127},
                        {"mxfp4:scale=ceil", 6.0f, 127},
                        {"mxfp4:scale=ceil", 6.001f, 128},
                        {"mxfp4", 0.0f, 0},
                        {"mxfp4", 0x1p-149f, 0},
                        {"mxfp4", 0x1p-125f, 0},
                        {"mxfp4", 0x1p-124f, 1},
                        {"mxfp4", 0x1.fffffep127f, 252},
                        {"mxfp4:scale=ceil", 0x1.fffffep127f, 252},
                        {"mxfp4", INFINITY, 255},
                        {"mxfp4", NAN, 255}};
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        for (const Row& row : rows) {
            std::vector<float> values(32, 0.0f);
            values[21] = -row.largest;
            const Bytes bytes = encoding_of(spec_of(row.spec), values);
            EXPECT_EQ(bytes.back(), row.byte) << row.spec << " " << row.largest;
            const bool finite = std::isfinite(row.largest);
            for (const float value : decoding_of(spec_of(row.spec), bytes, 32)) {
                EXPECT_EQ(std::isfinite(value), finite);
            }
        }
    }
}

TEST(Mx, GroupOfNvfp4IsPoisonAsAWholeAndNoOther) {
    std::vector<float> values(1100, 1.0f);
    values[600] = -INFINITY;
    const Bytes bytes = encoding_of(spec_of("nvfp4"), values);
    const std::vector<float> decoded = decoding_of(spec_of("nvfp4"), bytes, 1100);
    for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(std::isnan(decoded[i]), i / 512 == 1) << i;
    }
}

// Under a scale of 1: every value, every midpoint of two neighbours and both sides of it.
TEST(Mx, RoundsAtEveryMidpointLikeTheReference) {
    for (const char* name : {"mxfp4", "nvfp4"}) {
        const CodecSpec plain = spec_of(name);
        const uint32_t sign = 1u << (plain.params.bits - 1);
        std::vector<float> magnitudes;
        for (uint32_t code = 0; code < sign; ++code) {
            Bytes one(static_cast<size_t>(plain.encoded_bytes(DType::kFloat32, 16)), 0);
            one[0] = static_cast<uint8_t>(code);
            if (name == std::string("nvfp4")) {
                one[8 + 3] = 0x3F;  // 1
                one[8 + 2] = 0x80;
                one[12] = 0x38;
            } else {
                one.back() = 127;
            }
            const float value = reference::decode(plain, one.data(), 1)[0];
            if (std::isfinite(value)) {
                magnitudes.push_back(value);
            }
        }
        const float largest = magnitudes.back();
        for (const char* more : {"", ":scale=ceil", ":scale=ceil,rounding=stochastic"}) {
            const CodecSpec spec = spec_of(std::string(name) + more);
            std::vector<float> values;
            for (size_t k = 0; k + 1 < magnitudes.size(); ++k) {
                const float middle = (magnitudes[k] + magnitudes[k + 1]) / 2;
                for (const float x : {magnitudes[k], middle, std::nextafter(middle, INFINITY),
                                      std::nextafter(middle, 0.0f), magnitudes[k + 1]}) {
                    values.insert(values.end(), {x, -x});
                    while (values.size() % 16 == 15 || values.size() % 16 == 14) {
                        values.push_back(largest);  // of every block
                    }
                }
            }
            values.resize((values.size() + 511) / 512 * 512, largest);
            for (const Isa isa : all_isas()) {
                ASSERT_TRUE(force_isa(isa).ok());
                ASSERT_EQ(encoding_of(spec, values), *reference::encode(spec, values))
                    << isa_name(isa) << " " << name << more;
            }
        }
    }
}

TEST(Mx, ErrorFeedbackTakesEveryElementToItsMean) {
    std::mt19937 random(test_seed());
    constexpr int kSteps = 64;
    for (const char* name : {"mxfp4", "nvfp4"}) {
        EXPECT_LE(error_of_mean_sent(spec_of(name), 1024, kSteps, random), 0.25 / kSteps * 4)
            << name;
    }
}

TEST(Mx, EncodedBytesAreExact) {
    EXPECT_EQ(spec_of("mxfp4").encoded_bytes(DType::kBfloat16, 65), 3 * 17);
    EXPECT_EQ(spec_of("mxfp4").encoded_bytes(DType::kFloat32, 4096), 4096 / 32 * 17);
    EXPECT_EQ(spec_of("nvfp4").encoded_bytes(DType::kFloat32, 512), 512 / 16 * 9 + 4);
    EXPECT_EQ(spec_of("nvfp4").encoded_bytes(DType::kFloat32, 513), 33 * 9 + 8);
    EXPECT_EQ(spec_of("mxfp4").encoded_bytes(DType::kFloat32, int64_t{1} << 33),
              (int64_t{1} << 28) * 17);
}

TEST(MxSpec, StochasticRoundingNeedsAScaleThatCutsNothingOff) {
    for (const char* name : {"mxfp4", "nvfp4"}) {
        const auto refused = parse_codec(name + std::string(":rounding=stochastic"));
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.status().message().find("scale=ceil"), std::string::npos);
        const auto unknown = parse_codec(name + std::string(":scale=up"));
        ASSERT_FALSE(unknown.ok());
        EXPECT_NE(unknown.status().message().find("or ceil"), std::string::npos)
            << unknown.status().message();
        EXPECT_FALSE(parse_codec(name + std::string(":block=64")).ok());
        const std::string text = name + std::string(":scale=ceil,rounding=stochastic");
        EXPECT_EQ(spec_of(text).to_string(), text);
    }
    EXPECT_FALSE(parse_codec("mxfp4:scale=nearest").ok());
    EXPECT_FALSE(parse_codec("nvfp4:scale=floor").ok());
}

}  // namespace
}  // namespace slimwire::testing
