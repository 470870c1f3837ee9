// What only the block floats promise: literal bytes, the values of the standards, scale rules.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "codecs/numeric.h"
#include "tests/codecs/worked_example.h"

namespace slimwire::testing {
namespace {

TEST(Fp8, GoldenBytesOfTheWorkedExample) {
    EXPECT_EQ(encoding_of(spec_of("fp8e4m3:block=16"), kExample),
              (Bytes{0x00, 0x68, 0xE8, 0x70, 0xF0, 0x74, 0xF4, 0x7C,
                     0xFC, 0x7E, 0x7E, 0xFE, 0x5F, 0x5D, 0xD5, 0x60,  //
                     0xFE, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                     0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                     0x00, 0x3C, 0x93, 0x3B}));
    EXPECT_EQ(encoding_of(spec_of("fp8e5m2:block=16,scale=fp32"), kExample),
              (Bytes{0x00, 0x70, 0xF0, 0x74, 0xF4, 0x76, 0xF6, 0x7A,
                     0xFA, 0x7B, 0x7B, 0xFB, 0x6C, 0x6A, 0xE6, 0x6C,  //
                     0xFB, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                     0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                     0x00, 0x00, 0x80, 0x38, 0x25, 0x49, 0x12, 0x38}));
}

TEST(Fp8, CodesAreWorthWhatTheStandardSays) {
    struct Row {
        const char* spec;
        uint8_t code;
        float value;
    };
    const Row rows[] = {
        {"fp8e4m3", 0x00, 0.0f},       {"fp8e4m3", 0x01, 0x1p-9f},  {"fp8e4m3", 0x07, 0x1.Cp-7f},
        {"fp8e4m3", 0x08, 0x1p-6f},    {"fp8e4m3", 0x38, 1.0f},     {"fp8e4m3", 0xB9, -1.125f},
        {"fp8e4m3", 0x78, 256.0f},     {"fp8e4m3", 0x7E, 448.0f},   {"fp8e4m3", 0xFE, -448.0f},
        {"fp8e4m3", 0x7F, NAN},        {"fp8e4m3", 0xFF, NAN},      {"fp8e5m2", 0x01, 0x1p-16f},
        {"fp8e5m2", 0x03, 0x1.8p-15f}, {"fp8e5m2", 0x04, 0x1p-14f}, {"fp8e5m2", 0x3C, 1.0f},
        {"fp8e5m2", 0xBD, -1.25f},     {"fp8e5m2", 0x7B, 57344.0f}, {"fp8e5m2", 0x7C, INFINITY},
        {"fp8e5m2", 0xFC, -INFINITY},  {"fp8e5m2", 0x7D, NAN},      {"fp8e5m2", 0xFF, NAN}};
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        for (const Row& row : rows) {
            const CodecSpec spec = spec_of(row.spec + std::string(":block=16"));
            Bytes bytes(18, row.code);
            bytes[16] = 0x80;  // a scale of 1
            bytes[17] = 0x3F;
            for (const float value : decoding_of(spec, bytes, 16)) {
                if (std::isnan(row.value)) {
                    ASSERT_EQ(std::bit_cast<uint32_t>(value), kNanFloat32);
                } else {
                    ASSERT_TRUE(same_bits(value, row.value)) << row.spec << " " << int{row.code};
                }
            }
        }
    }
}

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

}  // namespace
}  // namespace slimwire::testing
