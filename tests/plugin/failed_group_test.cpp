// A group whose compressed calls have no room: it is an error, its native calls were made all the
// same, and what rules for parameters read of them is read, so that later calls go on. One process,
// two emulated devices of little memory, a policy of the test's own.
#include <gtest/gtest.h>

#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kCount = 1 << 20;

class FailedGroup : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"norms\"\n"
            "match = { op = \"allreduce\", dtype = \"fp32\", param = \"1d\" }\n"
            "codec = \"native\"\n"
            "[[rule]]\nname = \"halves\"\nmatch = { op = \"allreduce\", dtype = \"bf16\" }\n"
            "codec = \"int4\"\n");
    }
    FailedGroup() : TwoDevices(kCount) {}
};

TEST_F(FailedGroup, LeavesNothingUnreadThatLaterCallsWaitFor) {
    // All but a little of the memory, so that there is no room for scratch.
    std::vector<void*> ballast[kRanks];
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        void* little = nullptr;
        ASSERT_EQ(cudaMalloc(&little, 64 << 10), cudaSuccess);
        for (size_t bytes = size_t{32} << 20; bytes >= (64 << 10); bytes /= 2) {
            void* memory = nullptr;
            while (cudaMalloc(&memory, bytes) == cudaSuccess) {
                ballast[rank].push_back(memory);
            }
        }
        ASSERT_EQ(cudaFree(little), cudaSuccess);
        (void)cudaGetLastError();
    }
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kCount, ncclBfloat16, ncclSum,
                                comms_[rank], nullptr),
                  ncclSuccess);
        // As DistributedDataParallel tells its parameters' shapes.
        ASSERT_EQ(ncclAllGather(send_[rank], recv_[rank], 1, ncclInt64, comms_[rank], nullptr),
                  ncclSuccess);
        ASSERT_EQ(ncclBroadcast(send_[rank], recv_[rank], 4, ncclInt64, 0, comms_[rank], nullptr),
                  ncclSuccess);
    }
    EXPECT_NE(ncclGroupEnd(), ncclSuccess) << "there was room all the same";
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        for (void* memory : ballast[rank]) {
            ASSERT_EQ(cudaFree(memory), cudaSuccess);
        }
        (void)cudaGetLastError();
    }
    const Values ones(1000, 1.0f);
    EXPECT_TRUE(is_native(ones, sum(ones)));
}

}  // namespace
