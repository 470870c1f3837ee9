// EF21 call after call, against a slow oracle that knows only the codec's encode and decode: the
// result is the estimate that all ranks share, to the bit, also around a NaN; and with it errors of
// a gradient that stays the same die out. One process, two emulated devices, a policy of the test's
// own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kEstimatesCount = 5000;
constexpr size_t kChunk = 2560;  // half of it in whole blocks
constexpr size_t kEstimatesBlock = 64;
constexpr int kEstimatesSteps = 12;

using slimwire::test::coded;
using Values = std::vector<float>;

void add(Values* to, const Values& what) {
    for (size_t i = 0; i < to->size(); ++i) {
        (*to)[i] += what[i];
    }
}

constexpr size_t kGathered = 7000;  // elements of a sum by gather

// One rank's chunk of the message, as all ranks know it.
struct Chunk {
    Values own[2], owed, shared;

    explicit Chunk(size_t count) : own{Values(count), Values(count)}, owed(count), shared(count) {}

    Values step(const Values& first, const Values& second, float scale) {
        const Values* inputs[2] = {&first, &second};
        Values sum(shared.size());
        for (int rank = 0; rank < 2; ++rank) {
            Values difference(sum.size());
            for (size_t i = 0; i < sum.size(); ++i) {
                difference[i] = (*inputs[rank])[i] - own[rank][i];
            }
            const Values sent = coded(difference);
            add(&own[rank], sent);
            for (size_t i = 0; i < sum.size(); ++i) {
                sum[i] = rank == 0 ? sent[i] : sum[i] + sent[i];
            }
        }
        for (size_t i = 0; i < sum.size(); ++i) {
            volatile float scaled = sum[i] * scale;
            sum[i] = scaled + owed[i];
        }
        const Values sent = coded(sum);
        for (size_t begin = 0; begin < sum.size(); begin += kEstimatesBlock) {
            const size_t end = std::min(begin + kEstimatesBlock, sum.size());
            const bool finite = std::all_of(sum.begin() + static_cast<ptrdiff_t>(begin),
                                            sum.begin() + static_cast<ptrdiff_t>(end),
                                            [](float value) { return std::isfinite(value); });
            for (size_t i = begin; finite && i < end; ++i) {
                owed[i] = sum[i] - sent[i];
            }
        }
        add(&shared, sent);
        const Values result = shared;
        if (!std::all_of(result.begin(), result.end(), [](float x) { return std::isfinite(x); })) {
            for (Values* state : {&own[0], &own[1], &owed, &shared}) {
                std::fill(state->begin(), state->end(), 0.0f);
            }
        }
        return result;
    }
};

// A message whose sums are not encoded, as all ranks know it.
struct Gathered {
    Values own[2], shared;

    explicit Gathered(size_t count) : own{Values(count), Values(count)}, shared(count) {}

    Values step(const Values& first, const Values& second, float scale) {
        const Values* inputs[2] = {&first, &second};
        for (int rank = 0; rank < 2; ++rank) {
            Values difference(shared.size());
            for (size_t i = 0; i < difference.size(); ++i) {
                volatile float scaled = (*inputs[rank])[i] * scale;
                difference[i] = scaled - own[rank][i];
            }
            const Values sent = coded(difference);
            add(&own[rank], sent);
            add(&shared, sent);
        }
        const Values result = shared;
        if (!std::all_of(result.begin(), result.end(), [](float x) { return std::isfinite(x); })) {
            for (Values* state : {&own[0], &own[1], &shared}) {
                std::fill(state->begin(), state->end(), 0.0f);
            }
        }
        return result;
    }
};

Values part(const Values& of, size_t begin, size_t end) {
    return {of.begin() + static_cast<ptrdiff_t>(begin), of.begin() + static_cast<ptrdiff_t>(end)};
}

// A message whose sums are encoded, in a chunk a rank.
struct TwoChunks {
    Chunk left{kChunk}, right{kEstimatesCount - kChunk};

    Values step(const Values& first, const Values& second, float scale) {
        Values wanted = left.step(part(first, 0, kChunk), part(second, 0, kChunk), scale);
        const Values rest = right.step(part(first, kChunk, kEstimatesCount),
                                       part(second, kChunk, kEstimatesCount), scale);
        wanted.insert(wanted.end(), rest.begin(), rest.end());
        return wanted;
    }
};

Values input(int rank, int step, size_t count) {
    Values values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank)) *
                    (i % 7 == 0 ? 3.0f : 0.2f) * (step % 3 == 2 ? 0.1f : 1.0f);
    }
    if (step == 5 && rank == 1) {
        values[100] = NAN;  // in the first chunk
    }
    return values;
}

class Estimates : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"sparse\"\nmatch = { op = \"allreduce\", bytes = \"..8KiB\" }\n"
            "codec = \"topk:fraction=0.1\"\nerror_feedback = \"ef21\"\n"
            "[[rule]]\nname = \"gathered\"\nmatch = { op = \"allreduce\", bytes = \"24KiB..\" }\n"
            "codec = \"int4\"\nalgorithm = \"gather\"\nerror_feedback = \"ef21\"\n"
            "[[rule]]\nname = \"dense\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef21\"\n");
    }
    Estimates() : TwoDevices(kGathered) {}
    void SetUp() override {
        TwoDevices::SetUp();
        mark();
    }

    // The all-reduce of each rank's values; both ranks must have the same bits.
    Values reduce(const Values& first, const Values& second, ncclRedOp_t op) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        const Values* inputs[2] = {&first, &second};
        for (int rank = 0; rank < kRanks; ++rank) {
            fill(rank, *inputs[rank]);
            EXPECT_EQ(ncclAllReduce(send_[rank], recv_[rank], first.size(), ncclFloat32, op,
                                    comms_[rank], nullptr),
                      ncclSuccess);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        Values results[2] = {result(0, first.size()), result(1, first.size())};
        EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), first.size() * sizeof(float)),
                  0)
            << "ranks differ";
        return results[0];
    }

    // What arrives has the bits that `message` says, and in step 5 a NaN.
    template <class Message>
    void expect_oracle(Message message, size_t count, ncclRedOp_t op, float scale) {
        for (int step = 0; step < kEstimatesSteps; ++step) {
            const Values first = input(0, step, count), second = input(1, step, count);
            const Values got = reduce(first, second, op);
            const Values wanted = message.step(first, second, scale);
            EXPECT_EQ(std::isnan(wanted[100]), step == 5);
            for (size_t i = 0; i < count; ++i) {
                ASSERT_TRUE(std::isnan(wanted[i])
                                ? std::isnan(got[i])
                                : std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0)
                    << "step " << step << " element " << i << ": " << got[i] << " instead of "
                    << wanted[i];
            }
            mark();
        }
    }

    // Of the average of inputs that stay the same, after so many calls: relative, Euclidean.
    double error_after(int calls, size_t count) {
        const Values first = input(0, 0, count), second = input(1, 0, count);
        double error = 0, whole = 0;
        for (int call = 0; call < calls; ++call) {
            const Values got = reduce(first, second, ncclAvg);
            error = whole = 0;
            for (size_t i = 0; i < count; ++i) {
                const double mean = 0.5 * first[i] + 0.5 * second[i];
                error += (got[i] - mean) * (got[i] - mean);
                whole += mean * mean;
            }
            mark();
        }
        return std::sqrt(error / whole);
    }
};

TEST_F(Estimates, OfASumAsTheOracleSays) {
    expect_oracle(TwoChunks(), kEstimatesCount, ncclSum, 1.0f);
}

TEST_F(Estimates, OfAnAverageAsTheOracleSays) {
    expect_oracle(TwoChunks(), kEstimatesCount, ncclAvg, 0.5f);
}

TEST_F(Estimates, OfAGatheredAverageAsTheOracleSays) {
    expect_oracle(Gathered(kGathered), kGathered, ncclAvg, 0.5f);
}

// How many kinds of calls a rank knows is its own business; whether a sum goes by estimates is not.
TEST_F(Estimates, KindsThatOneRankAloneHasDoNotCount) {
    for (size_t count = 1; count <= 2100; ++count) {  // a kind of send and one of receive
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        ASSERT_EQ(ncclSend(send_[0], count, ncclFloat32, 0, comms_[0], nullptr), ncclSuccess);
        ASSERT_EQ(ncclRecv(recv_[0], count, ncclFloat32, 0, comms_[0], nullptr), ncclSuccess);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    mark();
    expect_oracle(TwoChunks(), kEstimatesCount, ncclSum, 1.0f);
}

TEST_F(Estimates, ErrorsDieOut) {
    EXPECT_GT(error_after(1, kEstimatesCount), 1e-2);
    EXPECT_LT(error_after(20, kEstimatesCount), 1e-5);
}

TEST_F(Estimates, ErrorsOfASparsifierDieOut) {
    EXPECT_GT(error_after(1, 1500), 0.2);
    EXPECT_LT(error_after(40, 1500), 0.02);
    EXPECT_LT(error_after(150, 1500), 1e-4);
}

// The sums are of 16-bit elements, the estimates are not.
TEST_F(Estimates, OfSixteenBitsAreKeptInFp32) {
    constexpr size_t kHalves = 6000;
    std::vector<uint16_t> halves(kHalves);
    for (size_t i = 0; i < kHalves; ++i) {
        halves[i] = slimwire::float_to_bfloat16(0.37f * std::sin(static_cast<float>(i)));
    }
    double error = 0;
    for (int call = 0; call < 25; ++call) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemcpy(send_[rank], halves.data(), kHalves * 2, cudaMemcpyHostToDevice),
                      cudaSuccess);
            ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kHalves, ncclBfloat16, ncclAvg,
                                    comms_[rank], nullptr),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        const Values raw = result(0, kHalves / 2);
        std::vector<uint16_t> got(kHalves);
        std::memcpy(got.data(), raw.data(), kHalves * 2);
        error = 0;
        for (size_t i = 0; i < kHalves; ++i) {
            error = std::max(error,
                             std::abs(static_cast<double>(slimwire::bfloat16_to_float(got[i]) -
                                                          slimwire::bfloat16_to_float(halves[i]))));
        }
        if (call == 0) {
            EXPECT_GT(error, 0.01);
        }
        mark();
    }
    EXPECT_EQ(error, 0.0) << "both ranks' average is an element of the type";
}

}  // namespace
