// Communicators made of others, under slimwire in one process: split, shrunk, revoked. Part of the
// program of lives_in_process_test.cpp.
#include <nccl_later.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/plugin/lives_fixture.h"

namespace slimwire::test {
namespace {

TEST_F(Lives, non_blocking_split_with_and_without_color) {
    for (const bool grouped : {false, true}) {
        ncclComm_t comms[kDevices] = {};
        ncclComm_t parts[kDevices] = {};
        start_non_blocking(&comms);
        settle(comms);
        if (grouped) {
            ASSERT_NCCL(ncclGroupStart());
        }
        for (int i = 0; i < kDevices; ++i) {
            const int color = i == 3 ? NCCL_SPLIT_NOCOLOR : 0;
            ASSERT_EQ(ncclCommSplit(comms[i], color, -i, &parts[i], nullptr), ncclInProgress);
        }
        if (grouped) {
            ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
        }
        settle(comms);
        EXPECT_EQ(parts[3], nullptr);
        settle(parts);
        expect_compresses(parts, {0, 1, 2});
        expect_compresses(comms, all_);
        destroy(&parts);
        destroy(&comms);
    }
}

// A blocking parent, a non-blocking part, and the other way round.
TEST_F(Lives, parts_that_block_unlike_their_parent) {
    ncclComm_t parents[kDevices] = {};
    ncclComm_t parts[kDevices] = {};
    ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
    ncclConfig_t config = non_blocking();
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_EQ(ncclCommSplit(parents[i], 0, i, &parts[i], &config), ncclInProgress);
    }
    expect_compresses(parents, all_);  // a blocking parent is not busy
    settle(parts);
    expect_compresses(parts, all_);
    expect_compresses(parents, all_);
    destroy(&parts);
    destroy(&parents);

    start_non_blocking(&parents);
    settle(parents);
    ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
    blocking.blocking = 1;
    for (int i = 0; i < kDevices; ++i) {
        // The handle is there when the parent says so.
        ASSERT_EQ(ncclCommSplit(parents[i], 0, i, &parts[i], &blocking), ncclInProgress);
    }
    settle(parents);
    for (ncclComm_t part : parts) {
        ASSERT_NE(part, nullptr);
    }
    settle(parts);
    expect_compresses(parts, all_);
    destroy(&parts);
    destroy(&parents);
}

TEST_F(Lives, blocking_split_in_a_group) {
    ncclComm_t parents[kDevices] = {};
    ncclComm_t parts[kDevices] = {};
    ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        const int color = i == 1 ? NCCL_SPLIT_NOCOLOR : 7;
        ASSERT_NCCL(ncclCommSplit(parents[i], color, i, &parts[i], nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    EXPECT_EQ(parts[1], nullptr);
    expect_compresses(parts, {0, 2, 3});
    // A part of a part.
    ncclComm_t pair[kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (const int i : {0, 2, 3}) {
        ASSERT_NCCL(
            ncclCommSplit(parts[i], i == 3 ? NCCL_SPLIT_NOCOLOR : 0, -i, &pair[i], nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    expect_compresses(pair, {0, 2});
    destroy(&pair);
    destroy(&parts);
    destroy(&parents);
}

TEST_F(Lives, threads_split_each_for_itself) {
    ncclComm_t parents[kDevices] = {};
    ncclComm_t parts[kDevices] = {};
    ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
    std::vector<std::thread> threads;
    for (int i = 0; i < kDevices; ++i) {
        threads.emplace_back([&, i] {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_NCCL(ncclCommSplit(parents[i], i / 2, 0, &parts[i], nullptr));
            ASSERT_NCCL(all_reduce(i, parts[i]));
            ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    expect_sum({0, 1});
    expect_sum({2, 3});
    destroy(&parts);
    destroy(&parents);
}

// A thread a rank, each with its own way of making and ending its communicators.
TEST_F(Lives, threads_make_and_end_communicators) {
    constexpr int kRounds = 4;
    std::vector<ncclUniqueId> ids(kRounds);
    for (ncclUniqueId& id : ids) {
        ASSERT_NCCL(ncclGetUniqueId(&id));
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < kDevices; ++i) {
        threads.emplace_back([&, i] {
            const CallsMayWait launches("exchanges of non-blocking communicators come later");
            ASSERT_CUDA(cudaSetDevice(i));
            for (int round = 0; round < kRounds; ++round) {
                ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                config.blocking = (round + i) % 2;  // ranks need not be alike in this
                ncclComm_t comm = nullptr;
                ncclComm_t part = nullptr;
                const ncclResult_t expected = config.blocking == 1 ? ncclSuccess : ncclInProgress;
                ASSERT_EQ(ncclCommInitRankConfig(&comm, kDevices, ids[static_cast<size_t>(round)],
                                                 i, &config),
                          expected);
                ASSERT_EQ(settled(comm), ncclSuccess) << ncclGetLastError(comm);
                ASSERT_EQ(ncclCommSplit(comm, 0, -i, &part, nullptr), expected);
                ASSERT_EQ(settled(comm), ncclSuccess) << ncclGetLastError(comm);
                for (ncclComm_t each : {comm, part}) {
                    ASSERT_EQ(settled(each), ncclSuccess) << ncclGetLastError(each);
                    ASSERT_NE(all_reduce(i, each), ncclInvalidArgument);
                    ASSERT_EQ(settled(each), ncclSuccess) << ncclGetLastError(each);
                    ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
                }
                ASSERT_NCCL(ncclCommDestroy(part));
                ASSERT_NCCL(ncclCommDestroy(comm));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    expect_sum(all_);
}

TEST_F(Lives, shrink_compresses_and_leaves_the_parent) {
    ncclComm_t parents[kDevices] = {};
    ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
    for (int round = 0; round < 2; ++round) {
        ncclComm_t rest[kDevices] = {};
        int excluded[] = {2};
        ASSERT_NCCL(ncclGroupStart());
        for (const int i : {0, 1, 3}) {
            ASSERT_NCCL(
                ncclCommShrink(parents[i], excluded, 1, &rest[i], nullptr, NCCL_SHRINK_DEFAULT));
        }
        ASSERT_NCCL(ncclGroupEnd());
        expect_compresses(rest, {0, 1, 3});
        destroy(&rest);
    }
    expect_compresses(parents, all_);
    destroy(&parents);
}

TEST_F(Lives, shrink_aborts_a_compressed_call_that_waits_for_the_lost_rank) {
    for (const bool blocking : {true, false}) {
        ncclComm_t parents[kDevices] = {};
        start(blocking, &parents);
        ncclComm_t without_2[kDevices] = {parents[0], parents[1], nullptr, parents[3]};
        ASSERT_NE(all_reduce_all(without_2), ncclInvalidArgument);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        for (const int i : {0, 1, 3}) {
            ASSERT_EQ(cudaStreamQuery(streams_[i]), cudaErrorNotReady);
        }
        ncclComm_t rest[kDevices] = {};
        int excluded[] = {2};
        const auto start = Clock::now();
        if (blocking) {
            ASSERT_NCCL(ncclGroupStart());
        }
        for (const int i : {0, 1, 3}) {
            ASSERT_EQ(ncclCommShrink(parents[i], excluded, 1, &rest[i], nullptr, NCCL_SHRINK_ABORT),
                      blocking ? ncclSuccess : ncclInProgress);
        }
        if (blocking) {
            ASSERT_NCCL(ncclGroupEnd());
        }
        settle(rest);
        for (const int i : {0, 1, 3}) {
            ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
        }
        EXPECT_LT(seconds_since(start), kBoundSeconds);
        expect_compresses(rest, {0, 1, 3});
        EXPECT_EQ(all_reduce(0, parents[0]), ncclInvalidUsage) << "the parent is NCCL's now";
        destroy(&rest);
        for (ncclComm_t parent : parents) {
            ASSERT_NCCL(ncclCommAbort(parent));
        }
    }
}

// A compressed call touches the private communicator alone.
TEST_F(Lives, suspend_and_resume_reach_the_private_communicator) {
    ncclComm_t comms[kDevices] = {};
    start(true, &comms);
    expect_compresses(comms, all_);
    for (ncclComm_t comm : comms) {
        ASSERT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    }
    EXPECT_EQ(all_reduce(0, comms[0]), ncclInvalidUsage);
    for (ncclComm_t comm : comms) {
        ASSERT_NCCL(ncclCommResume(comm));
    }
    expect_compresses(comms, all_);
    destroy(&comms);
}

TEST_F(Lives, revoke_ends_compressed_calls_and_leaves_the_members) {
    for (const bool blocking : {true, false}) {
        ncclComm_t parents[kDevices] = {};
        start(blocking, &parents);
        ncclComm_t without_2[kDevices] = {parents[0], parents[1], nullptr, parents[3]};
        ASSERT_NE(all_reduce_all(without_2), ncclInvalidArgument);
        const auto start = Clock::now();
        for (ncclComm_t parent : parents) {
            const ncclResult_t revoked = ncclCommRevoke(parent, NCCL_REVOKE_DEFAULT);
            ASSERT_TRUE(revoked == ncclSuccess || revoked == ncclInProgress);
        }
        for (const int i : {0, 1, 3}) {
            ASSERT_EQ(settled(parents[i]), ncclSuccess);
            ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
            EXPECT_EQ(all_reduce(i, parents[i]), ncclInvalidUsage);
        }
        EXPECT_LT(seconds_since(start), kBoundSeconds);
        ncclComm_t parts[kDevices] = {};
        if (blocking) {
            ASSERT_NCCL(ncclGroupStart());
        }
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_EQ(ncclCommSplit(parents[i], 0, i, &parts[i], nullptr),
                      blocking ? ncclSuccess : ncclInProgress);
        }
        if (blocking) {
            ASSERT_NCCL(ncclGroupEnd());
        }
        settle(parents);
        settle(parts);
        expect_compresses(parts, all_);
        destroy(&parts);
        destroy(&parents);
    }
}

}  // namespace
}  // namespace slimwire::test
