// How communicators come and go under slimwire, in one process with four emulated devices:
// non-blocking ones. Parts of others are in lives_parts_test.cpp, other beginnings and ends in
// lives_ends_test.cpp; all are one program.
#include <chrono>
#include <cstdlib>

#include "tests/plugin/lives_fixture.h"

namespace slimwire::test {
namespace {

TEST_F(Lives, non_blocking_in_a_group) {
    ncclUniqueId id;
    ncclConfig_t config = non_blocking();
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_EQ(ncclCommInitRankConfig(&comms[i], kDevices, id, i, &config), ncclInProgress);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
    settle(comms);
    expect_compresses(comms, all_);
    destroy(&comms);
}

TEST_F(Lives, non_blocking_by_the_environment) {
    ncclUniqueId id;
    ncclComm_t comms[kDevices] = {};
    ncclComm_t parts[kDevices] = {};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_EQ(setenv("NCCL_COMM_BLOCKING", "0", 1), 0);
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_EQ(ncclCommInitRank(&comms[i], kDevices, id, i), ncclInProgress);
    }
    settle(comms);
    expect_compresses(comms, all_);
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_EQ(ncclCommSplit(comms[i], i % 2, 0, &parts[i], nullptr), ncclInProgress);
    }
    settle(comms);
    settle(parts);
    ASSERT_EQ(unsetenv("NCCL_COMM_BLOCKING"), 0);
    ASSERT_TRUE(all_reduce_all(parts) != ncclInvalidArgument);
    settle(parts);
    expect_sum({0, 2});
    expect_sum({1, 3});
    destroy(&parts);
    destroy(&comms);
}

TEST_F(Lives, a_call_before_ready_is_an_error) {
    ncclUniqueId id;
    ncclConfig_t config = non_blocking();
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
    ncclComm_t part = nullptr;
    EXPECT_EQ(all_reduce(0, comms[0]), ncclInvalidArgument);
    EXPECT_EQ(ncclCommSplit(comms[0], 0, 0, &part, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommFinalize(comms[0]), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(comms[0]), ncclInvalidArgument);
    EXPECT_EQ(state_of(comms[0]), ncclInProgress);
    // It was only asked too early.
    ASSERT_CUDA(cudaSetDevice(1));
    ASSERT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclInProgress);
    settle(comms);
    expect_compresses(comms, {0, 1});
    destroy(&comms);
}

TEST_F(Lives, abort_gives_up_a_creation) {
    ncclUniqueId id;
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    const auto start = Clock::now();
    ASSERT_NCCL(ncclCommAbort(comm));
    EXPECT_LT(seconds_since(start), kBoundSeconds);
    // At every moment of a creation that succeeds.
    for (int round = 0; round < 12; ++round) {
        ncclComm_t comms[kDevices] = {};
        start_non_blocking(&comms);
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
        const auto begin = Clock::now();
        for (ncclComm_t& living : comms) {
            ASSERT_NCCL(ncclCommAbort(living));
        }
        EXPECT_LT(seconds_since(begin), kBoundSeconds) << "round " << round;
    }
    ncclComm_t comms[kDevices] = {};
    start_non_blocking(&comms);
    settle(comms);
    expect_compresses(comms, all_);
    // Ranks still name communicators alike.
    ncclComm_t parts[kDevices] = {};
    const auto begin = Clock::now();
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_EQ(ncclCommSplit(comms[i], i % 2, i, &parts[i], nullptr), ncclInProgress);
    }
    settle(comms);
    settle(parts);
    EXPECT_LT(seconds_since(begin), kBoundSeconds) << "they waited for each other in vain";
    destroy(&parts);
    destroy(&comms);
}

TEST_F(Lives, non_blocking_handles_are_reused) {
    for (int round = 0; round < 6; ++round) {
        ncclComm_t comms[kDevices] = {};
        start_non_blocking(&comms);
        settle(comms);
        expect_compresses(comms, all_);
        // Also ungrouped: from one thread, one rank after the other.
        for (int i = 0; i < kDevices; ++i) {
            const ncclResult_t result = all_reduce(i, comms[i]);
            ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress);
        }
        settle(comms);
        expect_sum(all_);
        if (round % 2 == 0) {
            destroy(&comms);
        } else {
            for (ncclComm_t comm : comms) {
                ASSERT_NCCL(ncclCommAbort(comm));
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::test
