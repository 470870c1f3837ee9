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
    on_all_isas([&] {
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
    on_all_isas([&] {
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
    on_all_isas([&] {
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

TEST_F(Sparse, ThresholdStopsAtItsCapacityAndCountsAllSurvivors) {
    on_all_isas([&] {
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
    on_all_isas([&] {
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
    on_all_isas([&] {
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

}  // namespace
}  // namespace slimwire::testing
