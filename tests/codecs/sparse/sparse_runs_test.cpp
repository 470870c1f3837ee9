// Runs of randomk: drawn by seed, step, tensor and chunk, so that encodings of all ranks add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/codecs/sparse/sparse_fixture.h"

namespace slimwire::testing {
namespace {

TEST_F(Sparse, NonFiniteOutsideEveryDrawnRunMakesTheFirstValueNaN) {
    on_all_isas([&] {
        for (const char* values : {"native", "int8", "int4"}) {
            const CodecSpec spec = spec_of(std::string("randomk:fraction=0.05,values=") + values);
            EXPECT_TRUE(spec.traits(kFp32).by_step && spec.traits(kFp32).draws_alike);
            const std::vector<float> clean(6400, 1.0f);
            const std::vector<float> drawn = sent_of(spec, clean);
            const auto at =
                static_cast<size_t>(std::find(drawn.begin(), drawn.end(), 0.0f) - drawn.begin());
            std::vector<float> p = clean;
            p[at] = kInfinity;
            std::vector<float> residual(p.size(), 0.5f);
            const std::vector<float> sent = sent_of(spec, p, &residual);
            const auto first = static_cast<size_t>(
                std::find_if(drawn.begin(), drawn.end(), [](float v) { return v != 0; }) -
                drawn.begin());
            EXPECT_TRUE(std::isnan(sent[first]));
            EXPECT_EQ(residual[first], 1.5f);  // as if it had not been sent
            EXPECT_EQ(residual[at], 0.5f);
        }
    });
}

TEST_F(Sparse, RandomRunsOfEqualSeedAndStepAddUp) {
    on_all_isas([&] {
        const CodecSpec spec = spec_of("randomk:fraction=0.1,seed=9");
        EXPECT_TRUE(spec.traits(kFp32).linear);
        const int64_t count = 3011;
        std::vector<float> total(static_cast<size_t>(count));
        std::vector<float> wire;
        Encoded sum = encode(spec, kFp32, random_input(kFp32, count, 1.0, random_), count);
        for (uint32_t rank = 0; rank < 3; ++rank) {
            const Guarded input = random_input(kFp32, count, 1.0, random_);
            const Encoded encoded = encode(spec, kFp32, input, count, nullptr, 1.0f, nullptr,
                                           {.seed = rank, .tensor = 5, .rank = rank, .step = 77});
            const std::vector<float> decoded = decoded_of(spec, encoded, count);
            if (rank == 0) {
                sum = encoded;
            }
            for (int64_t i = 0; i < count; ++i) {
                total[static_cast<size_t>(i)] += decoded[static_cast<size_t>(i)];
            }
            for (int64_t at = 16; rank > 0 && at < sum.size; at += 4) {
                reference::set_element(sum.bytes.data(), kFp32, at / 4,
                                       reference::element(sum.bytes.data(), kFp32, at / 4) +
                                           reference::element(encoded.bytes.data(), kFp32, at / 4));
            }
        }
        EXPECT_EQ(decoded_of(spec, sum, count), total);
        EXPECT_GT(std::count_if(total.begin(), total.end(), [](float v) { return v != 0; }), 250);
    });
}

TEST_F(Sparse, RandomRunsChangeWithSeedStepTensorAndChunkButNotWithRank) {
    const int64_t count = 20000;
    const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
    const auto drawn = [&](const char* text, const RandomKey& key) {
        const CodecSpec spec = spec_of(text);
        return decoded_of(
            spec, encode(spec, kFp32, buffer_of(ones), count, nullptr, 1.0f, nullptr, key), count);
    };
    const RandomKey key = {.seed = 1, .tensor = 2, .rank = 3, .step = 4};
    const auto base = drawn("randomk:seed=1", key);
    EXPECT_EQ(drawn("randomk:seed=1", {.seed = 8, .tensor = 2, .rank = 9, .step = 4}), base);
    EXPECT_NE(drawn("randomk:seed=2", key), base);
    EXPECT_NE(drawn("randomk:seed=1", {.seed = 1, .tensor = 3, .rank = 3, .step = 4}), base);
    EXPECT_NE(drawn("randomk:seed=1", {.seed = 1, .tensor = 2, .rank = 3, .step = 5}), base);
    // Over many steps every element is sent about as often.
    std::vector<int> times(static_cast<size_t>(count) / 32);
    for (uint32_t step = 0; step < 600; ++step) {
        const auto sent = drawn("randomk:fraction=0.1", {.seed = 0, .tensor = 0, .step = step});
        for (size_t run = 0; run < times.size(); ++run) {
            times[run] += sent[run * 32] != 0 ? 1 : 0;
        }
    }
    EXPECT_GT(*std::min_element(times.begin(), times.end()), 25);
    EXPECT_LT(*std::max_element(times.begin(), times.end()), 110);
}

TEST_F(Sparse, SourcesWithOtherRunsAreNotAddedSilently) {
    on_all_isas([&] {
        const CodecSpec spec = spec_of("randomk:fraction=0.1");
        for (const int64_t count : {1, 40, 3200}) {  // also values that complete a run
            const int64_t slot = slot_for(spec.encoded_bytes(kFp32, count));
            Guarded sources(2 * slot);
            for (int64_t i = 0; i < 2; ++i) {
                put_source(spec, kFp32, random_input(kFp32, count, 1.0, random_), count, sources,
                           i);
            }
            sources.data()[slot] ^= 1;  // the step
            uint32_t status = 0;
            Guarded output(slot);
            std::vector<float> residual(static_cast<size_t>(count), 0.5f);
            DecodeReduceEncodeArgs reduce = reduce_args(spec, kFp32, count, sources, 2, output);
            reduce.residual = residual.data();
            reduce.status = &status;
            spec.codec->host.decode_reduce_encode(reduce);
            EXPECT_EQ(status, kStatusCorrupt);
            const int64_t sent = std::max<int64_t>(count / 10, 32);
            for (int64_t i = 0; i < sent; ++i) {
                const float value = reference::element(output.data() + 16, kFp32, i);
                ASSERT_TRUE(std::isnan(value)) << "count " << count << " value " << i;
            }
            EXPECT_EQ(residual, std::vector<float>(static_cast<size_t>(count), 0.5f));
        }
    });
}

}  // namespace
}  // namespace slimwire::testing
