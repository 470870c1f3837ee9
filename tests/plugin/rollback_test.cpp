// rollback = "exact": what a step that the program skips took from the residuals, it gets back. So
// all later results are to the bit those of a job in which the step never was. fp16 gradients under
// a loss scale that grows until they overflow, as GradScaler's; one process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "tests/plugin/two_devices.h"

namespace {

using Bits = std::vector<uint16_t>;

struct Tensor {
    const char* what;
    size_t count;  // by which the policy knows it
    bool scattered = false;
};
constexpr Tensor kInt4 = {"int4", 8192};
constexpr Tensor kThreshold = {"threshold", 16384};
constexpr Tensor kAverage = {"moving average, scattered", 4096, true};
constexpr Tensor kGathered = {"gather", 24576};
constexpr Tensor kIgnoring = {"ignoring", 32768};
constexpr size_t kMostElems = 32768;

constexpr char kPolicy[] = R"(version = 1
[defaults]
codec = "int4"
error_feedback = "ef14"
rollback = "exact"
[[rule]]
name = "int4"
match = { op = "allreduce", bytes = "16KiB..16KiB" }
[[rule]]
name = "threshold"
match = { op = "allreduce", bytes = "32KiB..32KiB" }
codec = "threshold:fraction=0.05,refresh=20"
[[rule]]
name = "average"
match = { op = "reducescatter", bytes = "16KiB..16KiB" }
error_feedback = "ema"
residual = "fp32"
[[rule]]
name = "gather"
match = { op = "allreduce", bytes = "48KiB..48KiB" }
algorithm = "gather"
[[rule]]
name = "ignoring"
match = { op = "allreduce", bytes = "64KiB..64KiB" }
rollback = "ignore"
)";

float gradient(int rank, int number, size_t i) {
    return std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank) +
                    0.3f * static_cast<float>(number)) *
           (i % 97 == 0 ? 3.0f : 0.02f);
}

class Rollback : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() { write_policy(kPolicy); }
    Rollback() : TwoDevices(kMostElems) {}
    void SetUp() override {
        TwoDevices::SetUp();
        ASSERT_EQ(ncclCommInitAll(twin_, kRanks, nullptr), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&flag_[rank]), sizeof(float)),
                      cudaSuccess);
            ASSERT_EQ(cudaStreamCreateWithFlags(&aside_[rank], cudaStreamNonBlocking), cudaSuccess);
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(ncclCommDestroy(twin_[rank]), ncclSuccess);
            (void)cudaStreamDestroy(aside_[rank]);
            (void)cudaFree(flag_[rank]);
        }
        TwoDevices::TearDown();
    }

    // The sum of the ranks' gradients number `number`, times `scale`, as rank 0 gets it.
    Bits reduce(ncclComm_t* comms, const Tensor& tensor, int number, float scale) {
        const size_t all = tensor.count * (tensor.scattered ? kRanks : 1);
        for (int rank = 0; rank < kRanks; ++rank) {
            Bits values(all);
            for (size_t i = 0; i < all; ++i) {
                values[i] = slimwire::float_to_float16(scale * gradient(rank, number, i));
            }
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(send_[rank], values.data(), 2 * all, cudaMemcpyHostToDevice),
                      cudaSuccess);
        }
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(tensor.scattered
                          ? ncclReduceScatter(send_[rank], recv_[rank], tensor.count, ncclFloat16,
                                              ncclSum, comms[rank], nullptr)
                          : ncclAllReduce(send_[rank], recv_[rank], tensor.count, ncclFloat16,
                                          ncclSum, comms[rank], nullptr),
                      ncclSuccess);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        Bits sum(tensor.count);
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(sum.data(), recv_[0], 2 * tensor.count, cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return sum;
    }
    // What all ranks are told: whether the step is skipped.
    void flag(ncclComm_t* comms, float value) {
        for (int rank = 0; rank < kRanks; ++rank) {
            const float own = rank == 1 ? value : 0.0f;
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(flag_[rank], &own, sizeof own, cudaMemcpyHostToDevice),
                      cudaSuccess);
        }
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(ncclAllReduce(flag_[rank], flag_[rank], 1, ncclFloat32, ncclMax, comms[rank],
                                    aside_[rank]),
                      ncclSuccess);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(cudaStreamSynchronize(aside_[rank]), cudaSuccess);
        }
    }

    static bool finite(const Bits& values) {
        for (const uint16_t bits : values) {
            if ((bits & 0x7C00) == 0x7C00) {
                return false;
            }
        }
        return true;
    }

    // 100 steps of GradScaler, `calls` calls of the tensor in each; skipped ones are not made on
    // the twin. Returns how many committed steps differ from the twin's.
    int differing(const Tensor& tensor, int calls) {
        float scale = 8192;
        int committed = 0, skipped = 0, differ = 0, grown = 0;
        for (int step = 0; step < 100; ++step) {
            std::vector<Bits> sums;
            bool overflow = false;
            for (int call = 0; call < calls; ++call) {
                sums.push_back(reduce(comms_, tensor, calls * step + call, scale));
                overflow |= !finite(sums.back());
            }
            flag(comms_, overflow ? 1.0f : 0.0f);
            if (overflow) {
                ++skipped;
                scale /= 2;
                grown = 0;
                continue;
            }
            ++committed;
            bool same = true;
            for (int call = 0; call < calls; ++call) {
                same &= reduce(twin_, tensor, calls * step + call, scale) ==
                        sums[static_cast<size_t>(call)];
            }
            flag(twin_, 0.0f);
            differ += same ? 0 : 1;
            if (++grown == 20) {
                scale *= 2;
                grown = 0;
            }
        }
        EXPECT_GE(skipped, 2) << "no overflow to speak of";
        EXPECT_GT(committed, 80);
        return differ;
    }

    ncclComm_t twin_[kRanks] = {};
    float* flag_[kRanks] = {};
    cudaStream_t aside_[kRanks] = {};
};

TEST_F(Rollback, SkippedStepsLeaveNoTrace) {
    for (const Tensor& tensor : {kInt4, kThreshold, kAverage, kGathered}) {
        SCOPED_TRACE(tensor.what);
        EXPECT_EQ(differing(tensor, 1), 0);
    }
}

TEST_F(Rollback, OfSeveralCallsInAStepTheFirstCounts) {
    EXPECT_EQ(differing(kInt4, 3), 0);
}

TEST_F(Rollback, WithoutItTheyTakeWhatWasOwed) {
    EXPECT_GT(differing(kIgnoring, 1), 10);
}

// Sent and not owed any more, summed in float64: each of two steps in which nothing is committed
// would cost the ignoring job what it owed.
TEST_F(Rollback, NothingOfCommittedStepsIsLost) {
    const auto lost = [&](const Tensor& tensor) {
        std::vector<double> owed(tensor.count);
        for (int step = 0; step < 60; ++step) {
            const Bits sum = reduce(comms_, tensor, 0, 1.0f);
            const bool skip = step % 3 == 1;
            flag(comms_, skip ? 1.0f : 0.0f);
            for (size_t i = 0; !skip && i < tensor.count; ++i) {
                for (int rank = 0; rank < kRanks; ++rank) {
                    owed[i] += static_cast<double>(slimwire::float16_to_float(
                        slimwire::float_to_float16(gradient(rank, 0, i))));
                }
                owed[i] -= static_cast<double>(slimwire::float16_to_float(sum[i]));
            }
        }
        double most = 0;
        for (const double one : owed) {
            most = std::max(most, std::abs(one));
        }
        return most;
    };
    // A block's step is 3 / 7; two ranks and the owner of their sums owe half of one each.
    const double exact = lost(kInt4), ignoring = lost(kIgnoring);
    EXPECT_LT(exact, 1.2);
    EXPECT_GT(ignoring, 2 * exact);
}

TEST_F(Rollback, AFlagThatIsNotOfTheStepTakesNothingBack) {
    const auto same = [&](int number) {
        EXPECT_EQ(reduce(comms_, kInt4, number, 1.0f), reduce(twin_, kInt4, number, 1.0f))
            << number;
    };
    for (int number = 0; number < 70; ++number) {
        same(number);
    }
    flag(comms_, 1.0f);  // 1, for whatever reason
    flag(twin_, 0.0f);
    same(70);
    flag(comms_, 2.0f);  // no flag
    flag(twin_, 0.0f);
    same(71);
    flag(comms_, 1.0f);  // one of the step, at last
    flag(twin_, 0.0f);
    EXPECT_NE(reduce(comms_, kInt4, 72, 1.0f), reduce(twin_, kInt4, 72, 1.0f));
}

}  // namespace
