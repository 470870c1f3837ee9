// ncclCommSuspend: what slimwire keeps for a communicator leaves the device, and comes back bit for
// bit at the addresses that graphs know; with [runtime] free_suspended (TEST_FREE_SUSPENDED) what a
// rank may lose is zero there. One process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl_later.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"
#include "tests/support/has.h"

namespace {

constexpr size_t kSuspendCount = 3'000'000, kResidualBytes = kSuspendCount * sizeof(float);
using Results = std::vector<std::vector<float>>;

bool suspend_frees() {
    return std::getenv("TEST_FREE_SUSPENDED") != nullptr;
}

class Suspend : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        const std::string policy =
            std::string("version = 1\n[runtime]\nfree_suspended = ") +
            (suspend_frees() ? "true" : "false") +
            "\n[[rule]]\nname = \"factors\"\nmatch = { op = \"allreduce\", bytes = \"..8KiB\" }\n"
            "codec = \"powersgd:rank=1,row=32\"\nerror_feedback = \"ef14\"\n"
            "[[rule]]\nname = \"estimates\"\nmatch = { op = \"allreduce\", bytes = \"..24KiB\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef21\"\n"
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef14\"\n";
        write_policy(policy.c_str());
    }
    Suspend() : TwoDevices(kSuspendCount) {}

    static std::vector<std::vector<float>> gradients() {
        std::vector<std::vector<float>> given(2, std::vector<float>(kSuspendCount));
        for (size_t i = 0; i < kSuspendCount; ++i) {
            given[0][i] = static_cast<float>(i * 7919 % 1009) / 1009.0f;
            given[1][i] = -static_cast<float>(i * 104729 % 997) / 997.0f;
        }
        return given;
    }
    static std::vector<std::vector<float>> alike(size_t count) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = std::sin(0.7f * static_cast<float>(i)) + (i % 32 < 3 ? 2.0f : 0.1f);
        }
        return {values, values};
    }
    // What ranks must hold alike: estimates, factors.
    std::vector<Results> shared_steps(bool suspended) {
        static uint64_t step = 0;
        std::vector<Results> steps;
        EXPECT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
        for (int i = 0; i < 6; ++i) {
            if (i == 4 && suspended) {
                suspend();
                resume();
            }
            steps.push_back({reduce(alike(5000)), reduce(alike(1024))});
            EXPECT_EQ(slimwire_mark_step(++step), SLIMWIRE_OK);
        }
        return steps;
    }
    static double error_of(const std::vector<float>& sum) {
        const std::vector<float> given = alike(sum.size())[0];
        double error = 0;
        for (size_t i = 0; i < sum.size(); ++i) {
            error += std::pow(2 * given[i] - sum[i], 2);
        }
        return error;
    }
    void suspend() {
        for (ncclComm_t comm : comms_) {
            ASSERT_EQ(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclSuccess);
        }
    }
    void resume() {
        for (ncclComm_t comm : comms_) {
            ASSERT_EQ(ncclCommResume(comm), ncclSuccess);
        }
    }
    // Captures the sum of what is in the buffers; a graph a rank.
    void capture_sum() {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamCreate(&streams_[rank]), cudaSuccess);
            ASSERT_EQ(cudaStreamBeginCapture(streams_[rank], cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
        }
        group([&](int rank) {
            return ncclAllReduce(send_[rank], recv_[rank], kSuspendCount, ncclFloat32, ncclSum,
                                 comms_[rank], streams_[rank]);
        });
        for (int rank = 0; rank < kRanks; ++rank) {
            cudaGraph_t graph = nullptr;
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamEndCapture(streams_[rank], &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&graphs_[rank], graph, 0), cudaSuccess);
            ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        }
    }
    Values replay() {
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaGraphLaunch(graphs_[rank], streams_[rank]), cudaSuccess);
        }
        return equal_result(kSuspendCount);
    }
    void drop_graphs() {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaGraphExecDestroy(graphs_[rank]), cudaSuccess);
            ASSERT_EQ(cudaStreamDestroy(streams_[rank]), cudaSuccess);
        }
    }
    // Each step's sum differs by what the ones before it lost.
    Results steps(bool suspended) {
        Results results;
        results.push_back(reduce(gradients()));
        results.push_back(reduce(gradients()));
        capture_sum();
        results.push_back(replay());
        if (suspended) {
            const size_t before = free_bytes();
            suspend();
            EXPECT_GT(free_bytes(), before + kResidualBytes);
            EXPECT_EQ(ncclAllReduce(send_[0], recv_[0], kSuspendCount, ncclFloat32, ncclSum,
                                    comms_[0], nullptr),
                      ncclInvalidUsage);
            EXPECT_EQ(ncclCommSuspend(comms_[0], NCCL_SUSPEND_MEM), ncclInvalidUsage);
            resume();
            EXPECT_EQ(free_bytes(), before);
            EXPECT_EQ(ncclCommResume(comms_[0]), ncclInvalidUsage);
        }
        results.push_back(replay());
        results.push_back(reduce(gradients()));
        drop_graphs();
        return results;
    }

    cudaStream_t streams_[kRanks] = {};
    cudaGraphExec_t graphs_[kRanks] = {};
};

TEST_F(Suspend, residuals_and_graphs_are_as_they_were) {
    const Results through = steps(false);
    EXPECT_NE(through[0], through[1]) << "nothing is fed back";
    renew_communicators();
    testing::internal::CaptureStderr();
    const Results results = steps(true);
    const std::string log = testing::internal::GetCapturedStderr();
    if (!suspend_frees()) {
        EXPECT_EQ(results, through);
        EXPECT_HAS(log, " and 0 are dropped");
        return;
    }
    for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(results[3 + i] == through[i]) << "residuals are not zero";
    }
    EXPECT_HAS(log, "the host has 0 bytes of it, and 18000384 are");
}

TEST_F(Suspend, what_ranks_hold_alike_stays) {
    const std::vector<Results> through = shared_steps(false);
    renew_communicators();
    const std::vector<Results> steps = shared_steps(true);
    for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_TRUE(steps[i][0] == through[i][0]) << "estimates, step " << i;
        EXPECT_EQ(steps[i][1] == through[i][1], i < 4 || !suspend_frees()) << "factors, step " << i;
    }
    // With the factors that were found so far, not the first ones, and not without any.
    if (suspend_frees()) {
        EXPECT_NE(steps[4][1], steps[0][1]);
        EXPECT_LT(error_of(steps[4][1]), 0.9 * error_of(std::vector<float>(1024)));
    }
}

TEST_F(Suspend, its_memory_is_gone_when_it_ends_suspended) {
    reduce(gradients());
    renew_communicators();
    const size_t before = free_bytes();
    reduce(gradients());
    suspend();
    renew_communicators();
    EXPECT_EQ(free_bytes(), before);
}

}  // namespace
