// Communicators that change while the program goes on: non-blocking ones, shrinking, revoking.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <thread>
#include <vector>

#include "tests/support/async_comm.h"
#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_clique.h"

namespace slimwire::test {
namespace {

#define ASSERT_SETTLED(comms)                                                    \
    for (ncclComm_t settling : comms) {                                          \
        ASSERT_EQ(settled(settling), ncclSuccess) << ncclGetLastError(settling); \
    }

// A second clique on the same devices, non-blocking.
class NcclAsync : public Clique {
  protected:
    void SetUp() override {
        Clique::SetUp();
        const ncclUniqueId id = new_id();
        for (int i = 0; i < kDevices; ++i) {
            async_[i] = join(id, kDevices, i, i);
        }
        ASSERT_SETTLED(async_);
    }
    void TearDown() override {
        for (ncclComm_t comm : async_) {
            EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
        }
        Clique::TearDown();
    }
    // A communicator that is being made.
    static ncclComm_t join(const ncclUniqueId& id, int ranks, int rank, int device) {
        ncclConfig_t config = non_blocking();
        ncclComm_t comm = nullptr;
        EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
        EXPECT_EQ(ncclCommInitRankConfig(&comm, ranks, id, rank, &config), ncclInProgress);
        return comm;
    }
    ncclResult_t all_reduce_all() {
        return grouped(kDevices, [&](int i) { return all_reduce(i, ncclSum, async_[i]); });
    }
    ncclComm_t async_[kDevices] = {};
};

TEST_F(NcclAsync, initialisation_is_in_progress_until_all_have_come) {
    const ncclUniqueId id = new_id();
    int value = 0;
    const ncclComm_t first = join(id, 2, 0, 0);
    ASSERT_NE(first, nullptr);
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(state_of(first), ncclInProgress);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(ncclCommCount(first, &value), ncclInvalidArgument);
    EXPECT_HAS(last_error(), "in progress");
    EXPECT_EQ(all_reduce(0, ncclSum, first), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(first), ncclInvalidArgument);
    const ncclComm_t second = join(id, 2, 1, 1);
    ASSERT_EQ(settled(first), ncclSuccess);
    ASSERT_EQ(settled(second), ncclSuccess);
    ASSERT_NCCL(ncclCommCuDevice(second, &value));
    EXPECT_EQ(value, 1);
    ASSERT_NCCL(ncclCommDestroy(first));
    ASSERT_NCCL(ncclCommDestroy(second));
}

TEST_F(NcclAsync, a_group_of_initialisations) {
    const ncclUniqueId id = new_id();
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        comms[i] = join(id, kDevices, i, i);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
    ASSERT_SETTLED(comms);
    for (ncclComm_t comm : comms) {
        ASSERT_NCCL(ncclCommDestroy(comm));
    }
}

TEST_F(NcclAsync, a_failed_initialisation_is_reported_by_the_async_error) {
    const ncclUniqueId id = new_id();
    const ncclComm_t comms[] = {join(id, 2, 0, 0), join(id, 2, 1, 0)};  // both on device 0
    for (ncclComm_t comm : comms) {
        EXPECT_EQ(settled(comm), ncclInvalidUsage);
        EXPECT_EQ(all_reduce(0, ncclSum, comm), ncclInvalidUsage);
        EXPECT_HAS(last_error(), "duplicate GPU");
        ASSERT_NCCL(ncclCommAbort(comm));
    }
}

TEST_F(NcclAsync, abort_gives_up_a_waiting_initialisation) {
    const ncclComm_t comm = join(new_id(), 2, 0, 0);
    ASSERT_NCCL(ncclCommAbort(comm));  // the other rank never comes
    ncclResult_t state{};
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
}

// What it would have made is aborted when the other rank comes all the same, also where another
// communicator has its handle's place by then.
TEST_F(NcclAsync, an_initialisation_that_was_given_up_is_aborted_when_it_succeeds) {
    const ncclUniqueId id = new_id();
    std::vector<ncclUniqueId> ids;
    std::generate_n(std::back_inserter(ids), 10, new_id);
    ASSERT_NCCL(ncclCommAbort(join(id, 2, 0, 0)));
    std::vector<ncclComm_t> others;
    for (const ncclUniqueId& other : ids) {
        others.push_back(join(other, 2, 0, 0));
    }
    const ncclComm_t left = join(id, 2, 1, 1);
    EXPECT_EQ(settled(left, ncclSuccess), ncclRemoteError);
    ASSERT_NCCL(ncclCommAbort(left));
    for (ncclComm_t other : others) {
        ASSERT_NCCL(ncclCommAbort(other));
    }
}

TEST_F(NcclAsync, groups_are_launched_in_the_background) {
    for (int round = 0; round < 30; ++round) {
        ASSERT_EQ(all_reduce_all(), ncclInProgress);
        ASSERT_SETTLED(async_);
    }
    synchronize();
    for (const float* out : out_) {
        expect_all(out, 10);
    }
    ASSERT_EQ(all_reduce(0, ncclSum, async_[0]), ncclInProgress);  // a group of its own
    for (int i = 1; i < kDevices; ++i) {
        ASSERT_EQ(all_reduce(i, ncclSum, async_[i]), ncclInProgress);
    }
    ASSERT_SETTLED(async_);
    synchronize();
}

TEST_F(NcclAsync, a_failed_launch_is_reported_by_the_async_error) {
    cudaStream_t gone = nullptr;
    ASSERT_CUDA(cudaStreamCreate(&gone));
    ASSERT_CUDA(cudaStreamDestroy(gone));
    const ncclComm_t alone = join(new_id(), 1, 0, 0);
    ASSERT_EQ(settled(alone), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(in_[0], out_[0], 1, ncclFloat32, ncclSum, alone, gone), ncclInProgress);
    EXPECT_EQ(settled(alone), ncclUnhandledCudaError);
    ASSERT_NCCL(ncclCommAbort(alone));
}

TEST_F(NcclAsync, blocking_and_non_blocking_communicators_do_not_mix_in_a_group) {
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(all_reduce(0));
    ASSERT_NCCL(all_reduce(1, ncclSum, async_[1]));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(state_of(async_[1]), ncclSuccess);
}

TEST_F(NcclAsync, split_and_finalize_make_their_progress) {
    ncclComm_t parts[kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        const int color = i == 3 ? NCCL_SPLIT_NOCOLOR : 0;
        ASSERT_EQ(ncclCommSplit(async_[i], color, -i, &parts[i], nullptr), ncclInProgress);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
    ASSERT_SETTLED(async_);
    EXPECT_EQ(parts[3], nullptr);
    for (int i = 0; i < 3; ++i) {
        int rank = -1;
        ASSERT_EQ(settled(parts[i]), ncclSuccess);
        ASSERT_NCCL(ncclCommUserRank(parts[i], &rank));
        EXPECT_EQ(rank, 2 - i);
        ASSERT_EQ(ncclCommFinalize(parts[i]), ncclInProgress);
    }
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(settled(parts[i]), ncclSuccess);
        EXPECT_EQ(all_reduce(i, ncclSum, parts[i]), ncclInvalidUsage);
        ASSERT_NCCL(ncclCommDestroy(parts[i]));
    }
}

TEST_F(NcclAsync, captured_groups_are_in_the_graph_once_settled) {
    cudaGraphExec_t execs[kDevices] = {};
    for (cudaStream_t stream : streams_) {
        ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    }
    ASSERT_EQ(all_reduce_all(), ncclInProgress);
    ASSERT_SETTLED(async_);
    for (int i = 0; i < kDevices; ++i) {
        cudaGraph_t graph = nullptr;
        ASSERT_CUDA(cudaStreamEndCapture(streams_[i], &graph));
        ASSERT_CUDA(cudaGraphInstantiate(&execs[i], graph, 0));
        ASSERT_CUDA(cudaGraphDestroy(graph));
    }
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaGraphLaunch(execs[i], streams_[i]));
    }
    synchronize();
    expect_all(out_[2], 10);
    for (cudaGraphExec_t exec : execs) {
        ASSERT_CUDA(cudaGraphExecDestroy(exec));
    }
}

TEST_F(NcclAsync, the_environment_decides_over_the_configuration) {
    ncclComm_t comm = nullptr;
    ASSERT_CUDA(cudaSetDevice(0));
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    EXPECT_EQ(ncclCommInitRank(&comm, 1, new_id(), 0), ncclInProgress);
    ASSERT_EQ(settled(comm), ncclSuccess);
    ASSERT_NCCL(ncclCommDestroy(comm));
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    ncclConfig_t config = non_blocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclSuccess);
    unsetenv("NCCL_COMM_BLOCKING");
    ASSERT_NCCL(ncclCommDestroy(comm));
    config.blocking = 2;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclInvalidArgument);
}

// --- Shrinking and revoking

class NcclShrink : public Clique {
  protected:
    // Ranks 0, 1 and 3 go on without rank 2.
    void shrink(int flags) {
        int excluded[] = {2};
        ASSERT_NCCL(ncclGroupStart());
        for (const int i : kSurvivors) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_NCCL(ncclCommShrink(comms_[i], excluded, 1, &small_[i], nullptr, flags));
        }
        ASSERT_NCCL(ncclGroupEnd());
    }
    void expect_works() {
        ASSERT_NCCL(ncclGroupStart());
        for (const int i : kSurvivors) {
            ASSERT_NCCL(all_reduce(i, ncclSum, small_[i]));
        }
        ASSERT_NCCL(ncclGroupEnd());
        for (const int i : kSurvivors) {
            int rank = -1;
            ASSERT_NCCL(ncclCommUserRank(small_[i], &rank));
            EXPECT_EQ(rank, i == 3 ? 2 : i);
            ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
            expect_all(out_[i], 1 + 2 + 4);
            ASSERT_NCCL(ncclCommDestroy(small_[i]));
        }
    }
    // All but rank 2 wait in a collective.
    void hang() {
        ASSERT_NCCL(ncclGroupStart());
        for (const int i : kSurvivors) {
            ASSERT_NCCL(all_reduce(i));
        }
        ASSERT_NCCL(ncclGroupEnd());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        for (const int i : kSurvivors) {
            ASSERT_EQ(cudaStreamQuery(streams_[i]), cudaErrorNotReady);
        }
    }
    static constexpr int kSurvivors[] = {0, 1, 3};
    ncclComm_t small_[kDevices] = {};
};

TEST_F(NcclShrink, the_rest_goes_on_and_the_parent_stays_usable) {
    for (int round = 0; round < 2; ++round) {
        shrink(NCCL_SHRINK_DEFAULT);
        expect_works();
    }
    all_reduce_together(comms_);
    expect_all(out_[2], 10);
}

TEST_F(NcclShrink, abort_ends_what_waits_for_the_lost_rank) {
    hang();
    shrink(NCCL_SHRINK_ABORT);
    synchronize();
    expect_works();
    EXPECT_EQ(all_reduce(0), ncclInvalidUsage);
}

// All ranks number the parts of a group alike, in whatever order they are made.
TEST_F(NcclShrink, a_group_of_splits_of_the_same_communicators) {
    constexpr int kParts = 8;
    ncclComm_t parts[kParts][kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        for (int part = 0; part < kParts; ++part) {
            ASSERT_NCCL(ncclCommSplit(comms_[i], part % 2 == 0 ? i % 2 : i / 2,
                                      part % 3 == 0 ? -i : i, &parts[part][i], nullptr));
        }
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (int part = 0; part < kParts; ++part) {
        all_reduce_together(parts[part]);
        for (int i = 0; i < kDevices; ++i) {
            const int other = part % 2 == 0 ? (i + 2) % kDevices : i ^ 1;
            int rank = -1;
            ASSERT_NCCL(ncclCommUserRank(parts[part][i], &rank));
            EXPECT_EQ(rank, (i > other) != (part % 3 == 0) ? 1 : 0) << part;
            expect_all(out_[i], static_cast<float>(i + 1 + other + 1));
            ASSERT_NCCL(ncclCommDestroy(parts[part][i]));
        }
    }
}

TEST_F(NcclShrink, wrong_lists_are_refused) {
    ncclComm_t out = nullptr;
    int own[] = {0};
    int twice[] = {1, 1};
    int beyond[] = {kDevices};
    EXPECT_EQ(ncclCommShrink(comms_[0], own, 1, &out, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comms_[0], twice, 2, &out, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comms_[0], beyond, 1, &out, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comms_[0], beyond, 0, &out, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comms_[0], nullptr, 1, &out, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comms_[1], own, 1, &out, nullptr, 2), ncclInvalidArgument);
}

TEST_F(NcclShrink, revoke_ends_running_work_and_still_allows_to_split) {
    hang();
    for (ncclComm_t comm : comms_) {
        ASSERT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
        EXPECT_EQ(state_of(comm), ncclSuccess);
    }
    synchronize();
    EXPECT_EQ(all_reduce(0), ncclInvalidUsage);
    EXPECT_HAS(last_error(), "revoked");
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        const int color = i == 2 ? NCCL_SPLIT_NOCOLOR : 0;
        ASSERT_NCCL(ncclCommSplit(comms_[i], color, i, &small_[i], nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    expect_works();
    EXPECT_EQ(ncclCommRevoke(comms_[0], 1), ncclInvalidArgument);
}

TEST_F(NcclShrink, several_ids_make_one_communicator) {
    ncclUniqueId ids[] = {new_id(), new_id()};
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_NCCL(ncclCommInitRankScalable(&comms[i], kDevices, i, 2, ids, nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    all_reduce_together(comms);
    expect_all(out_[1], 10);
    for (ncclComm_t comm : comms) {
        ASSERT_NCCL(ncclCommDestroy(comm));
    }
    EXPECT_EQ(ncclCommInitRankScalable(&comms[0], 1, 0, 0, ids, nullptr), ncclInvalidArgument);
}

}  // namespace
}  // namespace slimwire::test
