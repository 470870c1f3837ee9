// A moving average of the error, call after call, against a slow oracle that knows only the codec's
// encode and decode: worker and server side of an all-reduce, and a reduce-scatter, to the bit, a
// NaN and a sparser call between. One process, two emulated devices, a policy of the test's own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/plugin/oracles.h"
#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kFeedbackOracleCount =
    5000;  // of an all-reduce, and of a block of a reduce-scatter
constexpr size_t kFeedbackOracleChunk = 2560;  // half of it in whole blocks
constexpr size_t kFeedbackOracleBlock = 64;
constexpr int kFeedbackOracleSteps = 12;

using slimwire::test::coded;
using Values = std::vector<float>;

// What one encoder owes, and what comes out of it.
class Encoder {
  public:
    explicit Encoder(size_t count) : owed_(count, 0.0f) {}

    // Decoded, of x + what is owed.
    Values send(const Values& x) {
        Values p(x.size());
        for (size_t i = 0; i < p.size(); ++i) {
            p[i] = x[i] + owed_[i];
        }
        const Values sent = coded(p);
        for (size_t begin = 0; begin < p.size(); begin += kFeedbackOracleBlock) {
            const size_t end = std::min(begin + kFeedbackOracleBlock, p.size());
            bool finite = true;
            for (size_t i = begin; i < end; ++i) {
                finite = finite && std::isfinite(p[i]);
            }
            for (size_t i = begin; finite && i < end; ++i) {
                const float lost = p[i] - sent[i];
                if (std::memcmp(&lost, &owed_[i], sizeof lost) == 0) {
                    continue;
                }
                volatile float kept = 0.8f * owed_[i];
                volatile float taken = (1.0f - 0.8f) * lost;
                owed_[i] = kept + taken;
            }
        }
        return sent;
    }

  private:
    Values owed_;
};

Values sum_of(const Values& a, const Values& b, float scale) {
    Values sum(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
        volatile float both = a[i] + b[i];
        sum[i] = both * scale;
    }
    return sum;
}

Values feedback_oracle_part(const Values& of, size_t begin, size_t end) {
    return {of.begin() + static_cast<ptrdiff_t>(begin), of.begin() + static_cast<ptrdiff_t>(end)};
}

Values feedback_oracle_input(int rank, int step, size_t count) {
    Values values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank)) *
                    (i % 7 == 0 ? 3.0f : 0.2f) * (step % 3 == 2 ? 0.1f : 1.0f);
    }
    if (step == 5 && rank == 1) {
        values[100] = NAN;
    }
    return values;
}

class FeedbackOracle : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = [\"allreduce\", "
            "\"reducescatter\"] }\ncodec = \"int4\"\nerror_feedback = \"ema\"\n"
            "residual = \"fp32\"\n");
    }
    FeedbackOracle() : TwoDevices(2 * kFeedbackOracleCount) {}

    static void expect_bits(const Values& got, const Values& wanted, int rank, int step) {
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_TRUE(std::isnan(got[i]) ? std::isnan(wanted[i])
                                           : std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0)
                << "rank " << rank << " step " << step << " element " << i << ": " << got[i]
                << " instead of " << wanted[i];
        }
    }

    void expect_all_reduce(ncclRedOp_t op, float scale) {
        Encoder workers[kRanks][kRanks] = {
            {Encoder(kFeedbackOracleChunk), Encoder(kFeedbackOracleCount - kFeedbackOracleChunk)},
            {Encoder(kFeedbackOracleChunk), Encoder(kFeedbackOracleCount - kFeedbackOracleChunk)}};
        Encoder owners[kRanks] = {Encoder(kFeedbackOracleChunk),
                                  Encoder(kFeedbackOracleCount - kFeedbackOracleChunk)};
        for (int step = 0; step < kFeedbackOracleSteps; ++step) {
            Values inputs[kRanks];
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            for (int rank = 0; rank < kRanks; ++rank) {
                inputs[rank] = feedback_oracle_input(rank, step, kFeedbackOracleCount);
                fill(rank, inputs[rank]);
                ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kFeedbackOracleCount, ncclFloat32,
                                        op, comms_[rank], nullptr),
                          ncclSuccess);
            }
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            Values wanted;
            for (int chunk = 0; chunk < kRanks; ++chunk) {
                const size_t begin = chunk == 0 ? 0 : kFeedbackOracleChunk,
                             end = chunk == 0 ? kFeedbackOracleChunk : kFeedbackOracleCount;
                const Values first =
                    workers[0][chunk].send(feedback_oracle_part(inputs[0], begin, end));
                const Values second =
                    workers[1][chunk].send(feedback_oracle_part(inputs[1], begin, end));
                const Values sent = owners[chunk].send(sum_of(first, second, scale));
                wanted.insert(wanted.end(), sent.begin(), sent.end());
            }
            EXPECT_EQ(std::isnan(wanted[100]), step == 5);
            for (int rank = 0; rank < kRanks; ++rank) {
                expect_bits(result(rank, kFeedbackOracleCount), wanted, rank, step);
            }
        }
    }
};

TEST_F(FeedbackOracle, AllReduce) {
    expect_all_reduce(ncclSum, 1.0f);
}

TEST_F(FeedbackOracle, Average) {
    expect_all_reduce(ncclAvg, 0.5f);
}

TEST_F(FeedbackOracle, ReduceScatter) {
    Encoder workers[kRanks][kRanks] = {
        {Encoder(kFeedbackOracleCount), Encoder(kFeedbackOracleCount)},
        {Encoder(kFeedbackOracleCount), Encoder(kFeedbackOracleCount)}};
    for (int step = 0; step < kFeedbackOracleSteps; ++step) {
        Values inputs[kRanks];
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            inputs[rank] = feedback_oracle_input(rank, step, 2 * kFeedbackOracleCount);
            fill(rank, inputs[rank]);
            ASSERT_EQ(ncclReduceScatter(send_[rank], recv_[rank], kFeedbackOracleCount, ncclFloat32,
                                        ncclSum, comms_[rank], nullptr),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        for (int block = 0; block < kRanks; ++block) {
            const size_t begin = static_cast<size_t>(block) * kFeedbackOracleCount;
            const Values first = workers[0][block].send(
                feedback_oracle_part(inputs[0], begin, begin + kFeedbackOracleCount));
            const Values second = workers[1][block].send(
                feedback_oracle_part(inputs[1], begin, begin + kFeedbackOracleCount));
            expect_bits(result(block, kFeedbackOracleCount), sum_of(first, second, 1.0f), block,
                        step);
        }
    }
}

}  // namespace
