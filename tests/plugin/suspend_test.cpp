// ncclCommSuspend: what slimwire keeps for a communicator leaves the device, and comes back bit for
// bit at the addresses that graphs know. One process, two emulated devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl_later.h>

#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kSuspendCount = 3'000'000, kResidualBytes = kSuspendCount * sizeof(float);
using Results = std::vector<std::vector<float>>;

class Suspend : public slimwire::test::SeveralDevices<2> {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef14\"\n");
    }
    Suspend() : SeveralDevices(kSuspendCount * sizeof(float)) {}

    static std::vector<std::vector<float>> gradients() {
        std::vector<std::vector<float>> given(2, std::vector<float>(kSuspendCount));
        for (size_t i = 0; i < kSuspendCount; ++i) {
            given[0][i] = static_cast<float>(i * 7919 % 1009) / 1009.0f;
            given[1][i] = -static_cast<float>(i * 104729 % 997) / 997.0f;
        }
        return given;
    }
    static size_t free_bytes() {
        size_t free = 0, total = 0;
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
        return free;
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
    void renew() {
        for (ncclComm_t comm : comms_) {
            ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
        }
        ASSERT_EQ(ncclCommInitAll(comms_, 2, nullptr), ncclSuccess);
    }
    // Each step's sum differs by what the ones before it lost.
    Results steps(bool suspended) {
        Results results;
        results.push_back(reduce(gradients()));
        results.push_back(reduce(gradients()));
        capture_sum(kSuspendCount);
        results.push_back(replay(kSuspendCount));
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
        results.push_back(replay(kSuspendCount));
        results.push_back(reduce(gradients()));
        drop_graphs();
        return results;
    }
};

TEST_P(Suspend, residuals_and_graphs_are_as_they_were) {
    const Results through = steps(false);
    EXPECT_NE(through[0], through[1]) << "nothing is fed back";
    renew();
    EXPECT_EQ(steps(true), through);
}

TEST_P(Suspend, its_memory_is_gone_when_it_ends_suspended) {
    reduce(gradients());
    renew();
    const size_t before = free_bytes();
    reduce(gradients());
    suspend();
    renew();
    EXPECT_EQ(free_bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Suspend, testing::Values(2));

}  // namespace
