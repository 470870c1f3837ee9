// What only the block floats promise: literal bytes, rounding at every midpoint, the ends of the
// range, errors on Gaussian data.
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

// Under a scale of 1: every value, every midpoint of two neighbours and both sides of it.
TEST(Fp8, RoundsAtEveryMidpointLikeTheReference) {
    for (const char* name : {"fp8e4m3:block=16", "fp8e5m2:block=16"}) {
        for (const char* rounding : {"", ",rounding=stochastic"}) {
            const CodecSpec spec = spec_of(std::string(name) + rounding);
            const bool e4m3 = spec.codec->name == std::string("fp8e4m3");
            const float largest = e4m3 ? 448.0f : 57344.0f;
            Bytes all(2 * 18, 0);
            std::vector<float> values;
            for (int code = 0; code < (e4m3 ? 0x7E : 0x7B); ++code) {
                all[0] = static_cast<uint8_t>(code);
                all[1] = static_cast<uint8_t>(code + 1);
                all[16] = 0x80;
                all[17] = 0x3F;
                const std::vector<float> pair = reference::decode(spec_of(name), all.data(), 2);
                const float middle = (pair[0] + pair[1]) / 2;
                for (const float x : {pair[0], middle, std::nextafter(middle, INFINITY),
                                      std::nextafter(middle, 0.0f), pair[1]}) {
                    values.insert(values.end(), {x, -x});
                    if (values.size() % 16 == 15) {
                        values.push_back(largest);
                    }
                }
                while (values.size() % 16 != 0) {
                    values.push_back(largest);
                }
            }
            for (const Isa isa : all_isas()) {
                ASSERT_TRUE(force_isa(isa).ok());
                ASSERT_EQ(encoding_of(spec, values), *reference::encode(spec, values))
                    << isa_name(isa) << " " << name << rounding;
            }
        }
    }
}

TEST(Fp8, FiniteNeverExceedsTheLargestNorBecomesInfinite) {
    std::mt19937 random(test_seed());
    for (const char* name : {"fp8e4m3:block=16", "fp8e5m2:block=16"}) {
        for (const char* more : {"", ",scale=fp32", ",rounding=stochastic"}) {
            const CodecSpec spec = spec_of(std::string(name) + more);
            const int most = spec.codec->name == std::string("fp8e4m3") ? 0x7E : 0x7B;
            for (int round = 0; round < 3000; ++round) {
                const uint32_t bits = round < 64 ? kInfinityBits - 1 - static_cast<uint32_t>(round)
                                                 : static_cast<uint32_t>(random()) % kInfinityBits;
                const float top = std::bit_cast<float>(bits);
                const std::vector<float> values(16, top);
                const Bytes bytes = encoding_of(spec, values);
                ASSERT_EQ(bytes, *reference::encode(spec, values)) << top;
                for (size_t i = 0; i < 16; ++i) {
                    ASSERT_LE(bytes[i], most) << top;
                }
                for (const float value : decoding_of(spec, bytes, 16)) {
                    ASSERT_TRUE(std::isfinite(value)) << top;
                    ASSERT_NEAR(value, top,
                                spec.codec->block_error_bound(spec.params, DType::kFloat32) *
                                        static_cast<double>(top) +
                                    spec.traits(DType::kFloat32).smallest_error);
                }
            }
        }
    }
}

TEST(Fp8, EncodedBytesAreExact) {
    EXPECT_EQ(spec_of("fp8e4m3").encoded_bytes(DType::kFloat32, 64), 66);
    EXPECT_EQ(spec_of("fp8e5m2").encoded_bytes(DType::kBfloat16, 65), 2 * 66);
    EXPECT_EQ(spec_of("fp8e5m2:block=2048,scale=fp32").encoded_bytes(DType::kFloat16, 1), 2052);
    EXPECT_EQ(spec_of("fp8e4m3").encoded_bytes(DType::kFloat32, int64_t{1} << 33),
              (int64_t{1} << 27) * 66);
}

}  // namespace
}  // namespace slimwire::testing
