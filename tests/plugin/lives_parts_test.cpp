// Communicators made of others, under slimwire in one process: split, shrunk, revoked. Part of the
// program of lives_in_process_test.cpp.
#include <nccl_later.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "tests/plugin/lives_fixture.h"

namespace slimwire::test {
namespace {

// Some of them a part of a part.
TEST_F(Lives, splits_with_and_without_color) {
    for (const auto& [blocking, grouped] :
         {std::pair(false, false), std::pair(false, true), std::pair(true, true)}) {
        const ncclResult_t started = blocking ? ncclSuccess : ncclInProgress;
        ncclComm_t comms[kDevices] = {}, parts[kDevices] = {}, pair[kDevices] = {};
        start(blocking, &comms);
        const auto split = [&](const ncclComm_t(&of)[kDevices], int without, ncclComm_t* made) {
            if (grouped) {
                ASSERT_NCCL(ncclGroupStart());
            }
            for (int i = 0; i < kDevices; ++i) {
                const int color = i == without ? NCCL_SPLIT_NOCOLOR : 7;
                if (of[i] != nullptr) {
                    ASSERT_EQ(ncclCommSplit(of[i], color, -i, &made[i], nullptr), started);
                }
            }
            if (grouped) {
                ASSERT_EQ(ncclGroupEnd(), started);
            }
            settle(of);
            EXPECT_EQ(made[without], nullptr);
        };
        split(comms, 1, parts);
        settle(parts);
        expect_compresses(parts, {0, 2, 3});
        split(parts, 3, pair);
        settle(pair);
        expect_compresses(pair, {0, 2});
        expect_compresses(comms, all_);
        destroy(&pair);
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
