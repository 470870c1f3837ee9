// Positions of topk and threshold: the form that is chosen, what it costs, spans, and corrupt ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "codecs/sparse/masked_values.h"
#include "tests/codecs/sparse/sparse_fixture.h"

namespace slimwire::testing {
namespace {

bool decodes_corrupt(const CodecSpec& spec, const uint8_t* bytes, int64_t count) {
    uint32_t status = 0;
    Guarded output(4 * count);
    DecodeArgs to_decode = decode_args(spec, kFp32, count, bytes, output.data());
    to_decode.status = &status;
    spec.codec->host.decode(to_decode);
    EXPECT_TRUE(output.margins_intact());
    return status == kStatusCorrupt;
}

// Fractions that make every form of positions the cheapest for 3 * 65536 + 77 elements.
constexpr int64_t kFormCount = 3 * 65536 + 77;
constexpr std::pair<const char*, IndexForm> kForms[] = {
    {"0.3", IndexForm::kBitmap},
    {"0.01", IndexForm::kLocal8},
    {"0.001", IndexForm::kLocal16},
    {"0.1", IndexForm::kEliasFano},
};

TEST_F(Sparse, FormOfPositionsFollowsFromCountAndCapacity) {
    on_all_isas([&] {
        for (const auto& [fraction, form] : kForms) {
            for (const char* name : {"topk", "threshold"}) {
                const CodecSpec spec = spec_of(std::string(name) + ":fraction=" + fraction);
                const Guarded input = random_input(kFp32, kFormCount, 1.0, random_);
                const std::vector<float> p = values_of(input, kFp32, kFormCount);
                const Encoded encoded = encode(spec, kFp32, input, kFormCount);
                EXPECT_EQ(word_of(encoded, 3), static_cast<uint32_t>(form)) << fraction;
                if (std::string(name) == "topk") {  // the reference sorts
                    ASSERT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p));
                }
                EXPECT_EQ(decoded_of(spec, encoded, kFormCount),
                          reference::decode(spec, encoded.bytes.data(), kFormCount));
                EXPECT_TRUE(
                    check_encoding(spec, kFp32, kFormCount, encoded.bytes.data(), encoded.size)
                        .ok());
            }
        }
    });
}

// Elements of few magnitudes over several spans of 8192, so that the cut of topk has more ties than
// it keeps and the capacity of threshold ends inside a span, with something non-finite behind.
TEST_F(Sparse, TiesAndCapacityEndInsideASpanOfHalfPrecisionElements) {
    constexpr int64_t kCount = 5 * 8192 + 300;
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
        for (const int levels : {1, 2, 8, 1000}) {
            std::vector<float> p(kCount);
            for (float& x : p) {
                const auto level = static_cast<float>(random_() % static_cast<unsigned>(levels));
                x = (random_() % 2 == 0 ? 1.0f : -1.0f) * (1.0f + level / 8.0f);
            }
            p[3 * 8192 + 77] = kNan;
            p[kCount - 500] = -kInfinity;
            for (const char* text : {"topk:fraction=", "threshold:threshold=1.125,fraction="}) {
                for (const char* rest : {"0.01", "0.1", "0.3", "0.75", "0.001", "0.02,values=int8",
                                         "0.6,values=int4"}) {
                    const CodecSpec spec = spec_of(std::string(text) + rest);
                    const Guarded input = buffer_of(p, dtype);
                    const std::vector<float> exact = values_of(input, dtype, kCount);
                    const auto expected = reference::encode(spec, exact, {}, dtype);
                    on_all_isas([&] {
                        SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " levels " +
                                     std::to_string(levels));
                        const Encoded encoded = encode(spec, dtype, input, kCount);
                        EXPECT_EQ(encoded.bytes.copy(encoded.size), *expected);
                    });
                }
            }
        }
    }
}

TEST_F(Sparse, WholeSegmentsAndFarValuesKeepTheirPositions) {
    on_all_isas([&] {
        for (const auto& [fraction, form] : kForms) {
            const CodecSpec spec =
                spec_of(std::string("threshold:threshold=1,fraction=") + fraction);
            const int64_t room = static_cast<int64_t>(spec.params.fraction * kFormCount);
            std::vector<float> p(kFormCount);
            for (int64_t i = 0; i < room / 2; ++i) {  // dense from the end, one at the beginning
                p[p.size() - 1 - static_cast<size_t>(i)] = 2.0f;
            }
            p[3] = -1.0f;
            const Encoded encoded = encode(spec, kFp32, buffer_of(p), kFormCount);
            EXPECT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p));
            EXPECT_EQ(decoded_of(spec, encoded, kFormCount), p) << fraction;
        }
    });
}

// All that an encoding has beside its values, with header and zeros between sections: at 5 % at
// most 1.1 bytes a value from 3190 elements on. The smallest that are compressed by default have
// 16384.
TEST_F(Sparse, PositionsOfOneInTwentyCostAtMostElevenTenthsOfAByte) {
    constexpr int64_t kLeast = 3190;
    const auto cost_of = [](const char* text, DType dtype, int64_t count) {
        const CodecSpec spec = spec_of(text);
        const auto elements = static_cast<double>(dtype_bytes(dtype));
        const double values = std::floor(0.05 * static_cast<double>(count) + 0.5);
        return static_cast<double>(spec.encoded_bytes(dtype, count)) / values - elements;
    };
    EXPECT_GT(cost_of("topk:fraction=0.05", DType::kBfloat16, kLeast - 1), 1.1) << "the limit";
    const auto check = [&](int64_t count) {
        for (const char* text :
             {"topk:fraction=0.05", "threshold:fraction=0.05", "threshold:fraction=0.05,refresh=9",
              "topk:fraction=0.05,pair=mask", "threshold:fraction=0.05,refresh=1,pair=mask"}) {
            for (const DType dtype : {kFp32, DType::kBfloat16}) {
                const double cost = cost_of(text, dtype, count);
                ASSERT_LE(cost, count < 16384 ? 1.1 : 0.87) << text << ' ' << count;
            }
        }
    };
    for (int64_t count = kLeast; count < 3 * 8192; ++count) {
        check(count);
    }
    for (int64_t spans = 3; spans <= 4096; spans += 1 + spans / 16) {
        for (const int64_t more : {-1, 0, 1, 16, 255, 256, 257, 4000, 8191}) {
            check(spans * 8192 + more);
        }
        check(spans * 8192 + static_cast<int64_t>(random_() % 8192));
    }
}

// And of fp16 both directions of messages take a thirteenth.
TEST(MaskedValues, OneInTwentyOfBothDirections) {
    const int64_t count = 4 << 20;
    const MaskedFrame frame =
        MaskedFrame::of(spec_of("topk:fraction=0.05,pair=mask").params, DType::kFloat16, count);
    const double both = static_cast<double>(2 * frame.bytes - frame.mask_bytes());
    EXPECT_GE(2.0 * 2.0 * static_cast<double>(count) / both, 13.0);
}

TEST_F(Sparse, CorruptTablesCountsAndPositionsAreReported) {
    struct Damage {
        const char* spec;
        int64_t at;  // byte; from the end when negative
        uint8_t value;
        const char* complaint;
    };
    // 20000 elements: three spans.
    const Damage damages[] = {
        {"topk:fraction=0.007", 1, 0xFF, "room for 140"},
        {"topk:fraction=0.007", 0, 139, "room for 140"},
        {"threshold:threshold=2,fraction=0.007", 12, 3, "header word 3"},
        {"topk:fraction=0.007", 13, 2, "header word 3"},
        {"topk:fraction=0.007", 17, 1, "do not ascend"},
        {"topk:fraction=0.007", 16 + 40 + 3, 1, "do not ascend"},
        {"topk:fraction=0.007", 16 + 8, 255, "exceed"},
        {"topk:fraction=0.007", 16 + 4, 255, "counts exceed"},
        {"threshold:threshold=9,fraction=0.05", 32 + 5, 1, "more ones than"},
        {"threshold:threshold=9,fraction=0.05", 0, 1, "fewer ones than"},
        {"topk:fraction=0.05", 32 + 4 * (31 + 40 + 3) + 10, 0, "do not ascend"},
        {"topk:fraction=0.3", 32, 0, "number of ones"},
        {"topk:fraction=0.3", 32 + 2499, 0xFF, "number of ones"},
        {"blocktopk:block=64,kept=4", 3, 0, "group 0: positions do not ascend"},
        {"blocktopk:block=64,kept=4", 4, 64, "group 1: positions do not ascend or leave"},
        {"rowtopk:row=500,kept=2", 3, 0xFF, "group 0"},
        {"blocktopk:block=16,kept=9", 0, 0, "number of ones"},
        {"randomk", 12, 1, "header word 3"},
    };
    on_all_isas([&] {
        const int64_t count = 20000;
        std::mt19937 same(1);  // the damage must differ from what was there
        const Guarded input = random_input(kFp32, count, 1.0, same);
        for (const Damage& damage : damages) {
            SCOPED_TRACE(std::string(damage.spec) + " byte " + std::to_string(damage.at));
            const CodecSpec spec = spec_of(damage.spec);
            Encoded encoded = encode(spec, kFp32, input, count);
            const auto check = [&](int64_t size) {
                return check_encoding(spec, kFp32, count, encoded.bytes.data(), size);
            };
            ASSERT_TRUE(check(encoded.size).ok()) << check(encoded.size).status().message();
            EXPECT_FALSE(decodes_corrupt(spec, encoded.bytes.data(), count));
            EXPECT_NE(check(encoded.size - 1).status().message().find("truncated"),
                      std::string::npos);
            encoded.bytes.data()[damage.at] = damage.value;
            ASSERT_FALSE(check(encoded.size).ok());
            EXPECT_NE(check(encoded.size).status().message().find(damage.complaint),
                      std::string::npos)
                << check(encoded.size).status().message();
            EXPECT_TRUE(std::string(damage.complaint) == "room for 140" && damage.at == 0
                            ? true
                            : decodes_corrupt(spec, encoded.bytes.data(), count));
        }
    });
}

}  // namespace
}  // namespace slimwire::testing
