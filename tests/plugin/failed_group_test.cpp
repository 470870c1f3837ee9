// Groups of calls that lack something on the device. One process, two emulated devices of little
// memory, a policy of the test's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kFailedGroupCount = 1 << 20;
constexpr size_t kMessages = 8;  // of so many elements
constexpr uint16_t kOneBf16 = 0x3f80;

class FailedGroup : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"norms\"\n"
            "match = { op = \"allreduce\", dtype = \"fp32\", param = \"1d\" }\n"
            "codec = \"native\"\n"
            "[[rule]]\nname = \"halves\"\nmatch = { dtype = \"bf16\" }\n"
            "codec = \"int4\"\n");
        // The first group forks a stream for its compressed call.
        ::setenv("SLIMWIRE_EMU_FAULT", "cudaEventRecord:1", 1);
    }
    FailedGroup() : TwoDevices(kMessages * kFailedGroupCount / 2) {}
};

// The group is an error, its native calls were made all the same, and what rules for parameters
// read of them is read, so that later calls go on.
TEST_F(FailedGroup, LeavesNothingUnreadThatLaterCallsWaitFor) {
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    on_all([&](int rank) {
        return ncclAllReduce(send_[rank], recv_[rank], kFailedGroupCount, ncclBfloat16, ncclSum,
                             comms_[rank], nullptr);
    });
    // As DistributedDataParallel tells its parameters' shapes.
    on_all([&](int rank) {
        return ncclAllGather(send_[rank], recv_[rank], 1, ncclInt64, comms_[rank], nullptr);
    });
    on_all([&](int rank) {
        return ncclBroadcast(send_[rank], recv_[rank], 4, ncclInt64, 0, comms_[rank], nullptr);
    });
    EXPECT_NE(ncclGroupEnd(), ncclSuccess) << "nothing failed";
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        (void)cudaGetLastError();
    }
    const Values ones(1000, 1.0f);
    EXPECT_TRUE(is_native(ones, sum(ones)));
}

// Each has room in what was reserved when the communicators were made, all together have not.
TEST_F(FailedGroup, RunsMessagesOneByOneWhereMemoryIsFull) {
    std::vector<void*> ballast[kRanks];
    for (int rank = 0; rank < kRanks; ++rank) {
        upload(rank, send_[rank], std::vector<uint16_t>(kMessages * kFailedGroupCount, kOneBf16));
        for (size_t bytes = size_t{32} << 20; bytes >= 256; bytes /= 2) {
            void* memory = nullptr;
            while (cudaMalloc(&memory, bytes) == cudaSuccess) {
                ballast[rank].push_back(memory);
            }
        }
        (void)cudaGetLastError();
    }
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (size_t begin = 0; begin < kMessages * kFailedGroupCount / 2;
         begin += kFailedGroupCount / 2) {  // of floats
        on_all([&](int rank) {
            return ncclRecv(recv_[rank] + begin, kFailedGroupCount, ncclBfloat16, 1 - rank,
                            comms_[rank], nullptr);
        });
        on_all([&](int rank) {
            return ncclSend(send_[rank] + begin, kFailedGroupCount, ncclBfloat16, 1 - rank,
                            comms_[rank], nullptr);
        });
    }
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
    for (int rank = 0; rank < kRanks; ++rank) {
        const auto halves = download<uint16_t>(rank, recv_[rank], kMessages * kFailedGroupCount);
        EXPECT_TRUE(std::all_of(halves.begin(), halves.end(),
                                [](uint16_t value) {
                                    return value == kOneBf16 ||
                                           value == kOneBf16 + 1;  // int4's scale is rounded up
                                }))
            << "rank " << rank;
        for (void* memory : ballast[rank]) {
            ASSERT_EQ(cudaFree(memory), cudaSuccess);
        }
    }
}

}  // namespace
