// Thresholds that follow the data: host bodies against plain words, their kernels on the execution
// model of tests/support/cuda_on_host.h, and what they promise of a stream of gradients.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/sparse/threshold_control.h"
#include "tests/codecs/fixture.h"

#include "codecs/sparse/threshold_control.cu"

namespace slimwire::testing {
namespace {

constexpr DType kFp32 = DType::kFloat32;

// A run of one tensor, encoded again and again.
struct Stream {
    CodecSpec spec;
    DType dtype;
    int64_t count, chunk_elems;
    bool kernels = false;
    bool feeds = true;
    int32_t max_blocks = 0;
    int64_t chunks = (count + chunk_elems - 1) / chunk_elems;
    int64_t slot = slot_for(spec.encoded_bytes(dtype, chunk_elems));
    Guarded state{threshold_state_bytes(chunks)};
    Guarded output{chunks * slot};
    Guarded workspace{threshold_workspace_on_cuda(spec.params, dtype, count, chunk_elems)};
    std::vector<float> residual = std::vector<float>(static_cast<size_t>(count), 0.0f);

    Stream(const std::string& text, DType type, int64_t elems, int64_t chunk)
        : spec(spec_of(text)), dtype(type), count(elems), chunk_elems(chunk) {
        std::memset(state.data(), 0, static_cast<size_t>(state.size()));
        std::memset(workspace.data(), 0x5A, static_cast<size_t>(workspace.size()));
    }
    [[nodiscard]] ThresholdRun* run() { return reinterpret_cast<ThresholdRun*>(state.data()); }
    [[nodiscard]] ThresholdChunk& chunk(int64_t number) { return threshold_chunks(run())[number]; }

    void encode(const Guarded& input, float scale = 1.0f) {
        EncodeArgs args = encode_args(spec, dtype, count, input.data(), output.data());
        args.residual = feeds ? residual.data() : nullptr;
        args.scale = scale;
        args.chunk_elems = chunk_elems;
        args.slot_bytes = slot;
        args.workspace = workspace.data();
        args.max_blocks = max_blocks;
        const ThresholdArgs control{args, run()};
        if (kernels) {
            ASSERT_EQ(adapt_threshold_on_cuda(control, nullptr), cudaSuccess);
        } else {
            adapt_threshold_on_host(control);
        }
        use_threshold(control.state, &args);
        spec.codec->host.encode(args);
        if (kernels) {
            ASSERT_EQ(finish_threshold_on_cuda(control, nullptr), cudaSuccess);
        } else {
            finish_threshold_on_host(control);
        }
        ASSERT_TRUE(state.margins_intact() && output.margins_intact() &&
                    workspace.margins_intact());
    }
    // What the last encoding sent, summed in fp64 with what is kept.
    [[nodiscard]] std::vector<double> sent_and_kept() {
        Guarded decoded(count * static_cast<int64_t>(dtype_bytes(dtype)));
        DecodeArgs to_decode = decode_args(spec, dtype, count, output.data(), decoded.data());
        to_decode.chunk_elems = chunk_elems;
        to_decode.slot_bytes = slot;
        spec.codec->host.decode(to_decode);
        const std::vector<float> sent = values_of(decoded, dtype, count);
        std::vector<double> sum(residual.begin(), residual.end());
        for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] += static_cast<double>(sent[i]);
        }
        return sum;
    }
    [[nodiscard]] std::vector<uint8_t> everything() const {
        std::vector<uint8_t> all = state.copy(state.size());
        const std::vector<uint8_t> bytes = output.copy(output.size());
        all.insert(all.end(), bytes.begin(), bytes.end());
        return all;
    }
};

class ThresholdControl : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

// The magnitude that the `wanted` largest reach.
float reached_by(const std::vector<float>& p, int64_t wanted) {
    std::vector<float> magnitudes(p.size());
    std::transform(p.begin(), p.end(), magnitudes.begin(), [](float x) { return std::abs(x); });
    std::nth_element(magnitudes.begin(), magnitudes.begin() + (wanted - 1), magnitudes.end(),
                     std::greater<>());
    return magnitudes[static_cast<size_t>(wanted - 1)];
}

TEST_F(ThresholdControl, TheFirstThresholdIsThatOfFourFifthsOfTheRoomInEveryChunk) {
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        for (const DType dtype : kFloatTypes) {
            for (const bool feeds : {false, true}) {
                Stream stream("threshold:fraction=0.05,refresh=100", dtype, 25'000, 8192);
                stream.feeds = feeds;
                const Guarded input = random_input(dtype, stream.count, 1.0, random_);
                std::vector<float> p = values_of(input, dtype, stream.count);
                for (size_t i = 0; feeds && i < p.size(); ++i) {
                    stream.residual[i] = 0.01f * static_cast<float>(i % 7);
                    p[i] = p[i] + stream.residual[i];
                }
                stream.encode(input);
                for (int64_t c = 0; c < stream.chunks; ++c) {
                    const int64_t begin = c * stream.chunk_elems;
                    const int64_t end = std::min(begin + stream.chunk_elems, stream.count);
                    const auto room = static_cast<int64_t>(std::floor(
                        static_cast<double>(0.05f) * static_cast<double>(end - begin) + 0.5));
                    EXPECT_EQ(stream.chunk(c).target, static_cast<uint32_t>(room * 4 / 5));
                    EXPECT_EQ(stream.chunk(c).threshold,
                              reached_by({p.begin() + begin, p.begin() + end}, room * 4 / 5));
                    EXPECT_GE(stream.chunk(c).survivors, stream.chunk(c).target);
                }
                EXPECT_EQ(stream.run()->exact, 1u);
            }
        }
    }
}

TEST_F(ThresholdControl, IsExactEveryRefreshEncodings) {
    for (const uint32_t refresh : {1u, 2u, 7u}) {
        Stream stream("threshold:fraction=0.1,refresh=" + std::to_string(refresh), kFp32, 5000,
                      5000);
        stream.feeds = false;
        const Guarded input = random_input(kFp32, stream.count, 1.0, random_);
        for (uint32_t step = 0; step < 15; ++step) {
            stream.encode(input);
            EXPECT_EQ(stream.run()->exact, step / refresh + 1) << step;
            EXPECT_EQ(stream.run()->since, step % refresh) << step;
            EXPECT_EQ(stream.run()->moved, 0u) << "the same data";
        }
    }
}

// Gradients whose scale drifts, falls tenfold and rises tenfold between two steps; with a residual
// and without.
TEST_F(ThresholdControl, SurvivorsStayNearTheTargetAcrossDriftAndJumps) {
    constexpr int kSteps = 240;
    for (const bool feeds : {false, true}) {
        Stream stream("threshold:fraction=0.01,refresh=1000", kFp32, 1 << 17, 1 << 17);
        stream.feeds = feeds;
        float scale = 1.0f;
        int all = 0, outside = 0;
        for (int step = 0; step < kSteps; ++step) {
            scale *= step == 80 ? 0.1f : step == 160 ? 10.0f : 0.997f;
            stream.encode(random_input(kFp32, stream.count, 1.0, random_), scale);
            for (int64_t c = 0; c < stream.chunks; ++c) {
                const ThresholdChunk& chunk = stream.chunk(c);
                const double part = static_cast<double>(chunk.survivors) / chunk.target;
                outside += part < 0.8 || part > 1.25 ? 1 : 0;
                ++all;
                EXPECT_GT(part, 0.72) << "step " << step << " feeds " << feeds;
                EXPECT_LT(part, 1.35) << "step " << step << " feeds " << feeds;
            }
        }
        // By chance of the sample alone.
        EXPECT_LE(outside, all / 100) << "feeds " << feeds;
        EXPECT_EQ(stream.run()->exact, 1u);
        EXPECT_GT(stream.run()->moved, 2u);
        EXPECT_EQ(stream.run()->wanted, static_cast<uint64_t>(all) * stream.chunk(0).target);
        EXPECT_NEAR(static_cast<double>(stream.run()->survivors),
                    static_cast<double>(stream.run()->wanted),
                    0.1 * static_cast<double>(stream.run()->wanted));
    }
}

TEST_F(ThresholdControl, WhatIsSentAndWhatIsKeptAreTheInputsAtEveryStep) {
    Stream stream("threshold:fraction=0.02,refresh=10", kFp32, 20'000, 6656);
    std::vector<double> owed(static_cast<size_t>(stream.count));
    for (int step = 0; step < 40; ++step) {
        const float scale = step < 20 ? 1.0f : 0.1f;
        const Guarded input = random_input(kFp32, stream.count, 1.0, random_);
        const std::vector<float> values = values_of(input, kFp32, stream.count);
        const std::vector<float> before = stream.residual;
        stream.encode(input, scale);
        const std::vector<double> sum = stream.sent_and_kept();
        for (size_t i = 0; i < sum.size(); ++i) {
            const float p = scale * values[i];
            ASSERT_EQ(sum[i], static_cast<double>(p + before[i])) << step << " " << i;
        }
        for (int64_t c = 0; c < stream.chunks; ++c) {
            uint32_t sent = 0;
            std::memcpy(&sent, stream.output.data() + c * stream.slot, 4);
            ASSERT_LE(sent, stream.chunk(c).target / 4 * 5 + 5);
        }
    }
}

TEST_F(ThresholdControl, WhatIsNotFiniteMovesNoThreshold) {
    Stream stream("threshold:fraction=0.05,refresh=4", kFp32, 9000, 9000);
    const Guarded input = random_input(kFp32, stream.count, 1.0, random_);
    stream.encode(input);
    const float threshold = stream.chunk(0).threshold;
    std::vector<float> bad(9000, INFINITY);
    bad[7] = NAN;
    Guarded overflow(stream.count * 4);
    std::memcpy(overflow.data(), bad.data(), bad.size() * 4);
    const std::vector<float> kept = stream.residual;
    stream.encode(overflow);
    EXPECT_EQ(stream.chunk(0).threshold, threshold);
    EXPECT_EQ(stream.residual, kept);
    stream.encode(input);
    EXPECT_TRUE(std::isfinite(stream.chunk(0).threshold) && stream.chunk(0).threshold > 0);
    // Of zeros nothing reaches the threshold, and nothing goes wrong afterwards.
    Guarded zeros(stream.count * 4);
    std::memset(zeros.data(), 0, static_cast<size_t>(zeros.size()));
    std::fill(stream.residual.begin(), stream.residual.end(), 0.0f);
    for (int step = 0; step < 5; ++step) {
        stream.encode(zeros);
        EXPECT_EQ(stream.chunk(0).survivors, 0u);
    }
    stream.encode(input);
    stream.encode(input);
    EXPECT_NEAR(stream.chunk(0).survivors, stream.chunk(0).target, stream.chunk(0).target / 4.0);
}

// Gradients of embeddings are zeros mostly, which must not take the room of the others.
TEST_F(ThresholdControl, WhatIsNotZeroIsSentWhereItHasRoom) {
    for (const char* text :
         {"threshold:fraction=0.05,refresh=1", "threshold:fraction=0.05,refresh=1000"}) {
        for (const bool kernels : {false, true}) {
            for (const DType dtype : kFloatTypes) {
                SCOPED_TRACE(std::string(text) + " " + dtype_name(dtype) +
                             (kernels ? " by kernels" : ""));
                Stream stream(text, dtype, 25'000, 10'240);
                stream.kernels = kernels;
                for (int step = 0; step < 4; ++step) {
                    const Guarded dense = random_input(dtype, stream.count, 1.0, random_);
                    Guarded input(dense.size());
                    const int64_t bytes = static_cast<int64_t>(dtype_bytes(dtype));
                    std::memset(input.data(), 0, static_cast<size_t>(input.size()));
                    for (int64_t i = step; i < stream.count; i += 40) {
                        std::memcpy(input.data() + i * bytes, dense.data() + i * bytes,
                                    static_cast<size_t>(bytes));
                    }
                    stream.encode(input);
                    ASSERT_EQ(stream.residual, std::vector<float>(stream.residual.size()))
                        << "step " << step;
                }
            }
        }
    }
}

TEST_F(ThresholdControl, KernelsAndEveryInstructionSetGiveTheSameBits) {
    struct Case {
        const char* text;
        int64_t count, chunk;
        bool feeds;
    };
    for (const Case& at :
         {Case{"threshold:fraction=0.02,refresh=3", 30'000, 30'000, true},
          Case{"threshold:fraction=0.05,refresh=5,values=int8", 40'000, 10'240, true},
          Case{"threshold:fraction=0.01,refresh=100", 150'000, 150'000, false},
          Case{"threshold:fraction=0.3,refresh=2", 700, 256, true}}) {
        for (const DType dtype : kFloatTypes) {
            if (!sampled(random_)) {
                continue;
            }
            SCOPED_TRACE(std::string(at.text) + " " + dtype_name(dtype));
            std::vector<Stream> streams;
            const std::vector<Isa> isas = all_isas();
            for (size_t i = 0; i <= isas.size(); ++i) {
                streams.emplace_back(at.text, dtype, at.count, at.chunk);
                streams.back().kernels = i == isas.size();
                streams.back().feeds = at.feeds;
            }
            for (int step = 0; step < 6; ++step) {
                const Guarded input = random_input(dtype, at.count, 1.0, random_);
                const float scale = step < 2 ? 1.0f : step < 4 ? 0.1f : 7.0f;
                for (size_t i = 0; i < streams.size(); ++i) {
                    ASSERT_TRUE(force_isa(isas[i % isas.size()]).ok());
                    streams[i].max_blocks = 1 + step % 3;
                    streams[i].encode(input, scale);
                    ASSERT_EQ(streams[i].everything(), streams[0].everything())
                        << "step " << step << " of " << i;
                    ASSERT_EQ(streams[i].residual, streams[0].residual);
                }
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
