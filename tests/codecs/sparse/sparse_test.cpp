// What the sparsifiers promise beyond the contract: which elements are sent, that sent and kept are
// complementary, capacities, values and specifications. Positions and runs: the files beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/codecs/sparse/sparse_fixture.h"

namespace slimwire::testing {
namespace {

TEST_F(Sparse, TiesGoToTheLowerPosition) {
    on_every_isa([&] {
        for (const char* text : {"topk:fraction=0.25", "blocktopk:block=16,kept=4"}) {
            const std::vector<float> values = {1, -2, 2, 1, -2, 2, 0, 2, 2, -2, 1, 2, 2, 2, 2, 2};
            const std::vector<float> expected = {0, -2, 2, 0, -2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
            EXPECT_EQ(sent_of(spec_of(text), values), expected) << text;
        }
        std::vector<float> equal(20000, 3.0f);
        const std::vector<float> sent = sent_of(spec_of("topk:fraction=0.3"), equal);
        std::fill(equal.begin() + 6000, equal.end(), 0.0f);
        EXPECT_EQ(sent, equal);
    });
}

TEST_F(Sparse, TopKSendsExactlyTheLargestAndTellsTheSmallestOfThem) {
    on_every_isa([&] {
        for (const DType dtype : kFloatTypes) {
            const CodecSpec spec = spec_of("topk:fraction=0.02");
            const int64_t count = 30011;
            const Guarded input = random_input(dtype, count, 0.1, random_);
            std::vector<float> magnitudes = values_of(input, dtype, count);
            for (float& v : magnitudes) {
                v = std::abs(v);
            }
            std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
            const Encoded encoded = encode(spec, dtype, input, count);
            EXPECT_EQ(word_of(encoded, 0), 600u);
            EXPECT_EQ(std::bit_cast<float>(word_of(encoded, 2)), magnitudes[599]);
            EXPECT_EQ(word_of(encoded, 1),
                      std::count_if(magnitudes.begin(), magnitudes.end(),
                                    [&](float v) { return v >= magnitudes[599]; }));
        }
    });
}

TEST_F(Sparse, ZerosAndMoreKeptThanThereAre) {
    on_every_isa([&] {
        for (const char* text :
             {"topk:fraction=1", "threshold:threshold=0,fraction=1", "blocktopk:block=16,kept=16",
              "rowtopk:row=37,kept=37", "randomk:fraction=1"}) {
            const CodecSpec spec = spec_of(text);
            for (const int64_t count : {1, 5, 100, 9000}) {
                EXPECT_EQ(sent_of(spec, std::vector<float>(static_cast<size_t>(count))),
                          std::vector<float>(static_cast<size_t>(count)));
                const Guarded input = random_input(kFp32, count, 1.0, random_);
                std::vector<float> residual(static_cast<size_t>(count));
                const Encoded encoded = encode(spec, kFp32, input, count, &residual);
                EXPECT_EQ(decoded_of(spec, encoded, count), values_of(input, kFp32, count)) << text;
                EXPECT_EQ(residual, std::vector<float>(static_cast<size_t>(count)));
            }
        }
    });
}

// What is sent and what is kept back are complementary: their sum is p, exactly.
TEST_F(Sparse, SentAndResidualAreComplementary) {
    on_every_isa([&] {
        for (const char* text : {"threshold:threshold=0.5,fraction=0.9",
                                 "threshold:threshold=0.5,fraction=0.2", "topk:fraction=0.05",
                                 "blocktopk", "rowtopk:row=100,kept=7", "randomk:fraction=0.1"}) {
            const CodecSpec spec = spec_of(text);
            const int64_t count = 10007;
            std::vector<float> p =
                values_of(random_input(kFp32, count, 1.0, random_), kFp32, count);
            p[17] = 0.5f;
            p[18] = std::nextafter(0.5f, 0.0f);
            std::vector<float> residual(p.size());
            const std::vector<float> sent = sent_of(spec, p, &residual);
            for (size_t i = 0; i < p.size(); ++i) {
                ASSERT_EQ(sent[i] + residual[i], p[i]) << text << " at " << i;
                ASSERT_TRUE(sent[i] == 0 || residual[i] == 0) << text << " at " << i;
            }
            if (spec.params.fraction == 0.9f) {
                EXPECT_EQ(sent[17], 0.5f);
                EXPECT_EQ(sent[18], 0.0f);
            }
        }
    });
}

TEST_F(Sparse, ThresholdStopsAtItsCapacityAndCountsAllSurvivors) {
    on_every_isa([&] {
        const CodecSpec spec = spec_of("threshold:threshold=2,fraction=0.1");
        std::vector<float> p(1000);
        for (size_t i = 0; i < p.size(); i += 3) {
            p[i] = -2.0f;
        }
        std::vector<float> residual(p.size());
        const Encoded encoded = encode(spec, kFp32, buffer_of(p), 1000, &residual);
        EXPECT_EQ(word_of(encoded, 0), 100u);
        EXPECT_EQ(word_of(encoded, 1), 334u);
        const std::vector<float> sent = decoded_of(spec, encoded, 1000);
        for (size_t i = 0; i < p.size(); ++i) {
            ASSERT_EQ(sent[i], i < 300 ? p[i] : 0);
            ASSERT_EQ(residual[i], i < 300 ? 0 : p[i]);
        }
    });
}

TEST_F(Sparse, ThresholdOfTheDevicePrevailsAndATopKEncodingProvidesOne) {
    on_every_isa([&] {
        const int64_t count = 5000;
        const Guarded input = random_input(kFp32, count, 1.0, random_);
        const CodecSpec top = spec_of("topk:fraction=0.05");
        const Encoded largest = encode(top, kFp32, input, count);
        float threshold = 0;
        std::memcpy(&threshold, largest.bytes.data() + 8, 4);
        const CodecSpec spec = spec_of("threshold:threshold=1e30,fraction=0.2");
        for (const float t : {threshold, kNan, -1.0f}) {
            Guarded output(slot_for(spec.encoded_bytes(kFp32, count)));
            EncodeArgs to_encode = encode_args(spec, kFp32, count, input.data(), output.data());
            to_encode.slot_bytes = output.size();
            to_encode.threshold_ptr = &t;
            spec.codec->host.encode(to_encode);
            uint32_t header[2];
            std::memcpy(header, output.data(), 8);
            EXPECT_EQ(header[0], t == threshold ? 250u : 1000u);
            EXPECT_EQ(header[1], t == threshold ? 250u : 5000u);
        }
    });
}

TEST_F(Sparse, NonFiniteBeyondTheCapacityIsReportedInBand) {
    on_every_isa([&] {
        for (const char* values : {"native", "int8", "int4"}) {
            const CodecSpec spec =
                spec_of(std::string("threshold:threshold=1,fraction=0.01,values=") + values);
            for (const float special : {kNan, kInfinity, -kInfinity}) {
                std::vector<float> p(9000, 1.0f);
                p[8999] = special;
                std::vector<float> residual(p.size(), 0.25f);
                const std::vector<float> sent = sent_of(spec, p, &residual);
                EXPECT_TRUE(std::isnan(sent[0]));
                EXPECT_TRUE(std::all_of(sent.begin() + 1, sent.end(),
                                        [](float v) { return std::isfinite(v); }));
                EXPECT_EQ(residual[8999], 0.25f);
                EXPECT_EQ(residual[8998], 1.25f);
            }
        }
    });
}

TEST_F(Sparse, IntegerValuesAreBlockIntegersOfTheSentElements) {
    on_every_isa([&] {
        const int64_t count = 6400;
        const Guarded input = random_input(kFp32, count, 1.0, random_);
        const std::vector<float> p = values_of(input, kFp32, count);
        for (const char* integers : {"int8", "int4"}) {
            const CodecSpec native = spec_of("blocktopk:block=64,kept=3");
            const CodecSpec spec =
                spec_of(std::string("blocktopk:block=64,kept=3,values=") + integers);
            const std::vector<float> exact = sent_of(native, p);
            std::vector<float> packed;
            for (const float v : exact) {
                if (v != 0) {
                    packed.push_back(v);
                }
            }
            ASSERT_EQ(packed.size(), 300u);
            const CodecSpec blocks = spec_of(integers);
            const Encoded encoded = encode(blocks, kFp32, buffer_of(packed), 300);
            const std::vector<float> expected = decoded_of(blocks, encoded, 300);
            size_t next = 0;
            const std::vector<float> sent = sent_of(spec, p);
            for (size_t i = 0; i < p.size(); ++i) {
                ASSERT_EQ(sent[i], exact[i] != 0 ? expected[next++] : 0.0f);
            }
        }
    });
}

TEST(SparseSpec, SizesAreThoseOfTheFormat) {
    // 16 header, 4 * 2 table, at 32 positions: 4 * 25 of bits and 52 of half bytes; 100 bf16 at
    // 192.
    EXPECT_EQ(spec_of("topk").encoded_bytes(DType::kBfloat16, 10000), 192 + 200);
    // One block of 128 kept: 128 bytes of positions, two blocks of codes, two scales.
    EXPECT_EQ(spec_of("blocktopk:kept=2,values=int8").encoded_bytes(DType::kBfloat16, 64 * 128),
              128 + 128 + 4);
    EXPECT_EQ(spec_of("randomk:fraction=0.01").encoded_bytes(DType::kFloat32, 32 * 1000),
              16 + 10 * 32 * 4);
    EXPECT_EQ(spec_of("threshold").encoded_bytes(DType::kFloat32, 0), 0);
    EXPECT_EQ(spec_of("rowtopk").granule(DType::kFloat32), 1024);
}

TEST(SparseSpec, ErrorsNameTheRange) {
    const std::pair<const char*, std::vector<const char*>> cases[] = {
        {"topk:fraction=0", {"fraction=0", "0.000001 to 1"}},
        {"topk:fraction=1.5", {"fraction=1.5"}},
        {"topk:fraction=nan", {"fraction=nan"}},
        {"topk:kept=3", {"unknown parameter \"kept\"", "fraction = a decimal"}},
        {"topk:values=int2", {"values=int2", "native, int8 or int4"}},
        {"topk:pair=both", {"pair=both", "none or mask"}},
        {"topk:pair=mask,values=int8", {"pair=mask", "accepted: values=native, or pair=none"}},
        {"randomk:pair=mask,values=int4", {"pair=mask", "accepted: values=native, or pair=none"}},
        {"threshold:pair=mask", {"pair=mask", "accepted: refresh=1 or more, or pair=none"}},
        {"blocktopk:pair=mask", {"unknown parameter \"pair\""}},
        {"blocktopk:block=16,kept=17", {"kept=17", "from 1 to 16", "block"}},
        {"rowtopk:row=8", {"kept=16", "from 1 to 8", "row"}},
        {"rowtopk:row=16385", {"row=16385", "2 to 16384"}},
        {"threshold:threshold=-1", {"threshold=-1", "0 to 3.4e38"}},
        {"threshold:refresh=-1", {"refresh=-1", "0 to 1000000000"}},
        {"randomk:seed=4294967296", {"seed=4294967296", "below 2^32"}},
    };
    for (const auto& [text, parts] : cases) {
        const auto spec = parse_codec(text);
        ASSERT_FALSE(spec.ok()) << text;
        for (const char* part : parts) {
            EXPECT_NE(spec.status().message().find(part), std::string::npos)
                << text << " -> " << spec.status().message() << " lacks " << part;
        }
    }
    EXPECT_EQ(spec_of("rowtopk:kept=2,row=8").to_string(), "rowtopk:row=8,kept=2");
    EXPECT_EQ(spec_of("threshold:values=int8,refresh=9,fraction=0.2").to_string(),
              "threshold:fraction=0.2,refresh=9,values=int8");
    EXPECT_EQ(spec_of("topk:fraction=0.010").to_string(), "topk");
    EXPECT_EQ(spec_of("threshold:pair=mask,refresh=9").to_string(),
              "threshold:refresh=9,pair=mask");
    EXPECT_EQ(spec_of("randomk:pair=mask").to_string(), "randomk:pair=mask");
    EXPECT_TRUE(spec_of("randomk:pair=mask").pairs_masks());
    EXPECT_EQ(spec_of("topk:pair=none").to_string(), "topk");
}

}  // namespace
}  // namespace slimwire::testing
