// The emulated NCCL's interface with four devices of one process: arguments, groups, splits,
// streams, operators, and what is refused.
#include <nccl_later.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_clique.h"

namespace slimwire::test {
namespace {

using NcclApi = Clique;

// Which no header of the emulator's has.
struct Team {
    int ranks, rank, stride;
};
extern "C" ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void* requirements, void* out);
extern "C" Team ncclTeamWorld(ncclComm_t comm);
extern "C" ncclResult_t ncclSignal(
    int peer, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream);

TEST_F(NcclApi, version_and_queries) {
    int value = 0;
    ASSERT_NCCL(ncclGetVersion(&value));
    EXPECT_EQ(value, 22809);
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_NCCL(ncclCommCount(comms_[i], &value));
        EXPECT_EQ(value, kDevices);
        ASSERT_NCCL(ncclCommUserRank(comms_[i], &value));
        EXPECT_EQ(value, i);
        ASSERT_NCCL(ncclCommCuDevice(comms_[i], &value));
        EXPECT_EQ(value, i);
        ncclResult_t state = ncclInternalError;
        ASSERT_NCCL(ncclCommGetAsyncError(comms_[i], &state));
        EXPECT_EQ(state, ncclSuccess);
    }
}

TEST_F(NcclApi, unique_id_is_zero_behind_the_address) {
    const ncclUniqueId a = new_id(), b = new_id();
    EXPECT_NE(memcmp(a.internal, b.internal, 8), 0) << "the token is random";
    for (int i = 36; i < NCCL_UNIQUE_ID_BYTES; ++i) {
        EXPECT_EQ(a.internal[i], 0) << i;
    }
}

TEST_F(NcclApi, id_tail_written_by_others_is_ignored) {
    ncclUniqueId id = new_id();
    memset(id.internal + 64, 0x5a, 64);
    ncclComm_t comm = nullptr;
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_NCCL(ncclCommInitRank(&comm, 1, id, 0));
    ASSERT_NCCL(ncclCommDestroy(comm));
}

TEST_F(NcclApi, nothing_is_launched_before_the_outermost_group_end) {
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_NCCL(ncclGroupStart());
        ASSERT_NCCL(all_reduce(i));
        ASSERT_NCCL(ncclGroupEnd());
    }
    // An empty stream is idle; with a waiting all-reduce on it, it would not be.
    for (cudaStream_t stream : streams_) {
        EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
    }
    expect_all(out_[0], -1);
    ASSERT_NCCL(ncclGroupEnd());
    synchronize();
    for (const float* out : out_) {
        expect_all(out, 10);
    }
}

TEST_F(NcclApi, group_state_belongs_to_the_thread) {
    ASSERT_NCCL(ncclGroupStart());
    std::thread other([] { EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage); });
    other.join();
    ASSERT_NCCL(ncclGroupEnd());
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_HAS(last_error(), "ncclGroupEnd");
}

TEST_F(NcclApi, an_error_in_a_group_is_returned_at_its_end_and_launches_nothing) {
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_NCCL(all_reduce(i));
    }
    EXPECT_EQ(ncclAllReduce(in_[0], out_[0], kCount, ncclNumTypes, ncclSum, comms_[0], nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    synchronize();
    expect_all(out_[0], -1);
    // The next group is a fresh one.
    all_reduce_together(comms_);
    expect_all(out_[0], 10);
}

TEST_F(NcclApi, simulate_end_drops_the_group) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_NCCL(all_reduce(i));
    }
    ASSERT_NCCL(ncclGroupSimulateEnd(&info));
    EXPECT_GE(info.estimatedTime, 0);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    synchronize();
    expect_all(out_[0], -1);
}

// The second operation reads on another stream what the first wrote: in one group, and in two.
TEST_F(NcclApi, calls_on_two_streams_keep_their_order) {
    const SideStreams second;
    for (int round = 0; round < 20; ++round) {
        const bool one_group = round % 2 == 0;
        ASSERT_NCCL(ncclGroupStart());
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_NCCL(all_reduce(i));
        }
        ASSERT_NCCL(one_group ? ncclSuccess : ncclGroupEnd());
        ASSERT_NCCL(grouped(
            kDevices, [&](int i) { return all_reduce_in_place(out_[i], comms_[i], second[i]); }));
        ASSERT_NCCL(one_group ? ncclGroupEnd() : ncclSuccess);
    }
    second.synchronize();
    for (const float* out : out_) {
        expect_all(out, 40);
    }
}

TEST_F(NcclApi, two_communicators_progress_independently) {
    // Rank order of the launches differs between the communicators; each has its own streams.
    ncclComm_t others[kDevices];
    const SideStreams streams;
    float* results[kDevices];
    ASSERT_NCCL(ncclCommInitAll(others, kDevices, nullptr));
    std::vector<std::thread> threads;
    for (int i = 0; i < kDevices; ++i) {
        results[i] = device_floats(i, 0);
    }
    for (int i = 0; i < kDevices; ++i) {
        threads.emplace_back([&, i] {
            cudaSetDevice(i);
            for (int k = 0; k < 2; ++k) {
                if ((i + k) % 2 == 0) {
                    EXPECT_EQ(all_reduce(i), ncclSuccess);
                } else {
                    EXPECT_EQ(ncclAllReduce(in_[i], results[i], kCount, ncclFloat32, ncclProd,
                                            others[i], streams[i]),
                              ncclSuccess);
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    synchronize();
    streams.synchronize();
    for (int i = 0; i < kDevices; ++i) {
        expect_all(out_[i], 10);
        expect_all(results[i], 24);
        ASSERT_NCCL(ncclCommDestroy(others[i]));
        ASSERT_CUDA(cudaFree(results[i]));
    }
}

TEST_F(NcclApi, split_by_color_and_key) {
    // Even and odd ranks, each in reverse order; rank 3 stays out.
    ncclComm_t parts[kDevices];
    ASSERT_NCCL(grouped(kDevices, [&](int i) {
        return ncclCommSplit(comms_[i], i == 3 ? NCCL_SPLIT_NOCOLOR : i % 2, -i, &parts[i],
                             nullptr);
    }));
    EXPECT_EQ(parts[3], nullptr);
    const int expected_rank[] = {1, 0, 0};
    const int expected_count[] = {2, 1, 2};
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < 3; ++i) {
        int value = -1;
        ASSERT_NCCL(ncclCommUserRank(parts[i], &value));
        EXPECT_EQ(value, expected_rank[i]) << i;
        ASSERT_NCCL(ncclCommCount(parts[i], &value));
        EXPECT_EQ(value, expected_count[i]) << i;
        ASSERT_NCCL(all_reduce(i, ncclSum, parts[i]));
    }
    ASSERT_NCCL(ncclGroupEnd());
    synchronize();
    expect_all(out_[0], 4);
    expect_all(out_[1], 2);
    expect_all(out_[2], 4);
    for (int i = 0; i < 3; ++i) {
        ASSERT_NCCL(ncclCommDestroy(parts[i]));
    }
}

TEST_F(NcclApi, a_split_outlives_its_parent) {
    ncclComm_t parents[kDevices];
    ncclComm_t parts[kDevices];
    ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
    ASSERT_NCCL(grouped(
        kDevices, [&](int i) { return ncclCommSplit(parents[i], 0, i, &parts[i], nullptr); }));
    for (ncclComm_t parent : parents) {
        ASSERT_NCCL(ncclCommDestroy(parent));
    }
    all_reduce_together(parts, ncclMin);
    expect_all(out_[3], 1);
    for (ncclComm_t part : parts) {
        ASSERT_NCCL(ncclCommDestroy(part));
    }
}

TEST_F(NcclApi, parts_of_a_parent_that_shares_have_its_abort_flag) {
    for (const int share : {0, 1}) {
        ncclComm_t parents[kDevices], parts[kDevices];
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.splitShare = share;
        const ncclUniqueId id = new_id();
        ASSERT_NCCL(ncclGroupStart());
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_NCCL(ncclCommInitRankConfig(&parents[i], kDevices, id, i, &config));
        }
        ASSERT_NCCL(ncclGroupEnd());
        config.splitShare = 1 - share;  // what the part itself says is not asked
        ASSERT_NCCL(grouped(
            kDevices, [&](int i) { return ncclCommSplit(parents[i], 0, i, &parts[i], &config); }));
        ASSERT_NCCL(ncclCommAbort(parts[0]));
        ncclResult_t state = ncclInternalError;
        ASSERT_NCCL(ncclCommGetAsyncError(parents[0], &state));
        EXPECT_EQ(state, share != 0 ? ncclInvalidUsage : ncclSuccess);
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_NCCL(i > 0 ? ncclCommAbort(parts[i]) : ncclSuccess);
            ASSERT_NCCL(ncclCommAbort(parents[i]));
        }
    }
}

TEST_F(NcclApi, host_memory_and_memory_of_another_device_are_refused) {
    std::vector<float> host(kCount);
    EXPECT_EQ(
        ncclAllReduce(host.data(), out_[0], kCount, ncclFloat32, ncclSum, comms_[0], streams_[0]),
        ncclInvalidArgument);
    EXPECT_HAS(last_error(), "sendbuff");
    EXPECT_EQ(
        ncclAllReduce(in_[0], host.data(), kCount, ncclFloat32, ncclSum, comms_[0], streams_[0]),
        ncclInvalidArgument);
    EXPECT_HAS(last_error(), "recvbuff");
    EXPECT_EQ(ncclAllReduce(in_[1], out_[0], kCount, ncclFloat32, ncclSum, comms_[0], streams_[0]),
              ncclInvalidArgument);
    EXPECT_HAS(last_error(), "device 1");
    EXPECT_EQ(ncclSend(nullptr, kCount, ncclFloat32, 1, comms_[0], streams_[0]),
              ncclInvalidArgument);
}

TEST_F(NcclApi, wrong_arguments_have_nccls_codes) {
    int value = 0;
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommCount(nullptr, &value), ncclInvalidArgument);
    EXPECT_EQ(ncclCommCount(comms_[0], nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetAsyncError(nullptr, &state), ncclInvalidArgument);
    EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(in_[0], out_[0], kCount, ncclFloat32, ncclSum, nullptr, streams_[0]),
              ncclInvalidArgument);
    EXPECT_EQ(all_reduce(0, ncclMaxRedOp), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(0, static_cast<ncclRedOp_t>(4711)), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(in_[0], out_[0], kCount, ncclFloat32, kDevices, comms_[0], streams_[0]),
              ncclInvalidArgument);
    EXPECT_EQ(ncclRecv(out_[0], kCount, ncclFloat32, -1, comms_[0], streams_[0]),
              ncclInvalidArgument);
    ncclComm_t comm = nullptr;
    ncclUniqueId id = new_id();
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
    memset(&id, 0, sizeof id);
    EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidArgument);
    ncclConfig_t config{};
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    const int twice[] = {0, 0};
    ncclComm_t two[2];
    EXPECT_EQ(ncclCommInitAll(two, 2, twice), ncclInvalidUsage);
    EXPECT_EQ(ncclCommInitAll(two, kDevices + 1, nullptr), ncclInvalidArgument);
}

TEST_F(NcclApi, a_destroyed_handle_is_refused) {
    ncclComm_t comm = nullptr;
    int value = 0;
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_NCCL(ncclCommInitRank(&comm, 1, new_id(), 0));
    ASSERT_NCCL(ncclCommFinalize(comm));
    EXPECT_EQ(ncclAllReduce(in_[0], out_[0], kCount, ncclFloat32, ncclSum, comm, streams_[0]),
              ncclInvalidUsage);
    ASSERT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(ncclCommCount(comm, &value), ncclInvalidArgument);
}

TEST_F(NcclApi, an_operator_belongs_to_its_communicator_and_type) {
    ncclRedOp_t op = ncclSum;
    float factor = 0.5f;
    ASSERT_NCCL(
        ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comms_[0]));
    EXPECT_EQ(all_reduce(1, op), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(in_[0], out_[0], 1, ncclFloat16, op, comms_[0], streams_[0]),
              ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(op, comms_[1]), ncclInvalidArgument);
    ASSERT_NCCL(ncclRedOpDestroy(op, comms_[0]));
    EXPECT_EQ(ncclRedOpDestroy(op, comms_[0]), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, comms_[0]), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(0, op), ncclInvalidArgument);
}

TEST_F(NcclApi, count_zero_does_nothing_and_messages_of_zero_bytes_match) {
    ASSERT_NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comms_[0], streams_[0]));
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclSend(nullptr, 0, ncclFloat32, 1, comms_[0], streams_[0]));
    ASSERT_NCCL(ncclSend(in_[0], kCount, ncclFloat32, 1, comms_[0], streams_[0]));
    ASSERT_NCCL(ncclRecv(nullptr, 0, ncclFloat32, 0, comms_[1], streams_[1]));
    ASSERT_NCCL(ncclRecv(out_[1], kCount, ncclFloat32, 0, comms_[1], streams_[1]));
    ASSERT_NCCL(ncclGroupEnd());
    synchronize();
    expect_all(out_[1], 1);
}

TEST_F(NcclApi, legacy_default_stream_of_each_device) {
    ASSERT_NCCL(grouped(kDevices, [&](int i) {
        return ncclAllReduce(in_[i], out_[i], kCount, ncclFloat32, ncclSum, comms_[i], nullptr);
    }));
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_CUDA(cudaDeviceSynchronize());
        expect_all(out_[i], 10);
    }
}

TEST_F(NcclApi, memory_and_registration) {
    void* data = nullptr;
    void* handle = nullptr;
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_NCCL(ncclMemAlloc(&data, 4096));
    ASSERT_NCCL(ncclCommRegister(comms_[0], data, 4096, &handle));
    ASSERT_NCCL(ncclCommDeregister(comms_[0], handle));
    ASSERT_NCCL(ncclMemFree(data));
    (void)cudaGetLastError();
    EXPECT_EQ(ncclMemAlloc(nullptr, 1), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(nullptr, data, 1, &handle), ncclInvalidArgument);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comms_[0], in_[0], 512, &window, NCCL_WIN_COLL_SYMMETRIC));
    EXPECT_NE(window, nullptr);
    EXPECT_EQ(ncclCommWindowDeregister(comms_[1], window), ncclInvalidArgument);
    ASSERT_NCCL(ncclCommWindowDeregister(comms_[0], window));
    EXPECT_EQ(ncclCommWindowDeregister(comms_[0], window), ncclInvalidArgument);
    EXPECT_EQ(ncclCommWindowRegister(comms_[0], in_[0], 512, &window, 8), ncclInvalidArgument);
    float on_the_host = 0;
    EXPECT_EQ(ncclCommWindowRegister(comms_[0], &on_the_host, 4, &window, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDeregister(comms_[0], &on_the_host), ncclInvalidArgument);
}

TEST_F(NcclApi, what_is_not_emulated_says_so) {
    const auto expect_refused = [](ncclResult_t result, const char* name) {
        EXPECT_EQ(result, ncclInvalidUsage) << name;
        EXPECT_HAS(last_error(), name);
    };
    expect_refused(ncclDevCommCreate(comms_[0], nullptr, nullptr), "ncclDevCommCreate");
    expect_refused(ncclSignal(1, 0, 0, 0, comms_[0], streams_[0]), "ncclSignal");
    ASSERT_NCCL(ncclGroupStart());
    expect_refused(ncclSignal(1, 0, 0, 0, comms_[0], streams_[0]), "ncclSignal");
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(ncclTeamWorld(comms_[0]).ranks, 0);
    EXPECT_HAS(last_error(), "ncclTeamWorld");
}

}  // namespace
}  // namespace slimwire::test
