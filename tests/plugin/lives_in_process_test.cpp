// How communicators come and go under slimwire, in one process with four emulated devices:
// non-blocking ones, parts of others, ends in the middle of work. After each of them a compressed
// call proves that the new communicator is whole.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#define ASSERT_CUDA(call) ASSERT_EQ((call), cudaSuccess)
#define ASSERT_NCCL(call) ASSERT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDevices = 4;
constexpr size_t kCount = 20000;

ncclConfig_t non_blocking() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    return state;
}

// What a communicator says once it is not busy any more; ncclInProgress after 15 s.
ncclResult_t settled(ncclComm_t comm) {
    const auto limit = Clock::now() + std::chrono::seconds(15);
    ncclResult_t state = state_of(comm);
    while (state == ncclInProgress && Clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        state = state_of(comm);
    }
    return state;
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Streams and buffers of four ranks; the tests make the communicators.
class Lives : public testing::Test {
  protected:
    void SetUp() override {
        int devices = 0;
        ASSERT_CUDA(cudaGetDeviceCount(&devices));
        ASSERT_EQ(devices, kDevices) << "SLIMWIRE_EMU_DEVICES must be 4";
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_CUDA(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
            std::vector<float> host(kCount);
            for (size_t k = 0; k < kCount; ++k) {
                host[k] = static_cast<float>(i + 1) * base(k);
            }
            ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&in_[i]), kCount * sizeof(float)));
            ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&out_[i]), kCount * sizeof(float)));
            ASSERT_CUDA(
                cudaMemcpy(in_[i], host.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
        }
    }
    void TearDown() override {
        for (int i = 0; i < kDevices; ++i) {
            EXPECT_EQ(cudaStreamDestroy(streams_[i]), cudaSuccess);
            EXPECT_EQ(cudaFree(in_[i]), cudaSuccess);
            EXPECT_EQ(cudaFree(out_[i]), cudaSuccess);
        }
    }

    static float base(size_t k) { return 1 + static_cast<float>(k) / static_cast<float>(kCount); }

    ncclResult_t all_reduce(int device, ncclComm_t comm) {
        return ncclAllReduce(in_[device], out_[device], kCount, ncclFloat32, ncclSum, comm,
                             streams_[device]);
    }

    // One group of all-reduces over the communicators of the devices that have one.
    ncclResult_t all_reduce_all(const ncclComm_t (&comms)[kDevices]) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int i = 0; i < kDevices; ++i) {
            if (comms[i] != nullptr) {
                EXPECT_EQ(all_reduce(i, comms[i]), ncclSuccess) << ncclGetLastError(nullptr);
            }
        }
        return ncclGroupEnd();
    }

    // The sum over `ranks` on each of them, within int8's error, and not exact, because then
    // nothing was compressed.
    void expect_sum(const std::vector<int>& ranks, bool compressed = true) {
        float factor = 0;
        for (const int i : ranks) {
            factor += static_cast<float>(i + 1);
        }
        for (const int i : ranks) {
            ASSERT_CUDA(cudaStreamSynchronize(streams_[i]));
            std::vector<float> host(kCount);
            ASSERT_CUDA(
                cudaMemcpy(host.data(), out_[i], kCount * sizeof(float), cudaMemcpyDeviceToHost));
            size_t wrong = 0, inexact = 0;
            for (size_t k = 0; k < kCount; ++k) {
                const float wanted = factor * base(k);
                wrong += std::abs(host[k] - wanted) > 0.02f * wanted ? 1 : 0;
                inexact += std::abs(host[k] - wanted) > 1e-5f * wanted ? 1 : 0;
            }
            EXPECT_EQ(wrong, 0u) << "device " << i;
            if (compressed) {
                EXPECT_GT(inexact, kCount / 10) << "nothing was compressed on device " << i;
            } else {
                EXPECT_EQ(inexact, 0u) << "device " << i;
            }
            ASSERT_CUDA(cudaMemset(out_[i], 0, kCount * sizeof(float)));
            ASSERT_CUDA(cudaStreamSynchronize(nullptr));  // the ranks' streams do not wait for it
        }
    }

    // A compressed all-reduce over `comms`, twice: made, and made use of again.
    void expect_compresses(const ncclComm_t (&comms)[kDevices], const std::vector<int>& ranks) {
        for (int round = 0; round < 2; ++round) {
            const ncclResult_t result = all_reduce_all(comms);
            ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress)
                << ncclGetLastError(nullptr);
            for (const int i : ranks) {
                ASSERT_EQ(settled(comms[i]), ncclSuccess) << ncclGetLastError(nullptr);
            }
            expect_sum(ranks);
        }
    }

    // Four non-blocking ranks from one thread, without a group.
    static void start_non_blocking(ncclComm_t (*comms)[kDevices]) {
        ncclUniqueId id;
        ncclConfig_t config = non_blocking();
        ASSERT_NCCL(ncclGetUniqueId(&id));
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_EQ(ncclCommInitRankConfig(&(*comms)[i], kDevices, id, i, &config),
                      ncclInProgress);
            ASSERT_NE((*comms)[i], nullptr);
        }
    }
    static void settle(const ncclComm_t (&comms)[kDevices]) {
        for (ncclComm_t comm : comms) {
            if (comm != nullptr) {
                ASSERT_EQ(settled(comm), ncclSuccess) << ncclGetLastError(nullptr);
            }
        }
    }
    static void destroy(ncclComm_t (*comms)[kDevices]) {
        for (ncclComm_t& comm : *comms) {
            if (comm != nullptr) {
                EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess) << ncclGetLastError(nullptr);
                comm = nullptr;
            }
        }
    }

    const std::vector<int> all_{0, 1, 2, 3};
    cudaStream_t streams_[kDevices] = {};
    float* in_[kDevices] = {};
    float* out_[kDevices] = {};
};

// --- Non-blocking communicators

TEST_F(Lives, non_blocking_compresses) {
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
    destroy(&comms);
}

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

// Slimwire's part must not need the polls: nobody polls rank 1..3 before rank 0 is ready.
TEST_F(Lives, progress_needs_no_polling) {
    ncclComm_t comms[kDevices] = {};
    start_non_blocking(&comms);
    ASSERT_EQ(settled(comms[0]), ncclSuccess);
    // And a call comes right whether or not slimwire's part of the others is done.
    ASSERT_NE(all_reduce_all(comms), ncclInvalidArgument);
    settle(comms);
    expect_sum(all_);
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
    EXPECT_LT(seconds_since(start), 1);
    // At every moment of a creation that succeeds.
    for (int round = 0; round < 12; ++round) {
        ncclComm_t comms[kDevices] = {};
        start_non_blocking(&comms);
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
        const auto begin = Clock::now();
        for (ncclComm_t& living : comms) {
            ASSERT_NCCL(ncclCommAbort(living));
        }
        EXPECT_LT(seconds_since(begin), 3) << "round " << round;
    }
    ncclComm_t comms[kDevices] = {};
    start_non_blocking(&comms);
    settle(comms);
    expect_compresses(comms, all_);
    destroy(&comms);
}

TEST_F(Lives, non_blocking_handles_are_reused) {
    for (int round = 0; round < 6; ++round) {
        ncclComm_t comms[kDevices] = {};
        start_non_blocking(&comms);
        settle(comms);
        expect_compresses(comms, all_);
        if (round % 2 == 0) {
            destroy(&comms);
        } else {
            for (ncclComm_t comm : comms) {
                ASSERT_NCCL(ncclCommAbort(comm));
            }
        }
    }
}

TEST_F(Lives, non_blocking_finalize_after_calls) {
    ncclComm_t comms[kDevices] = {};
    start_non_blocking(&comms);
    settle(comms);
    ASSERT_NE(all_reduce_all(comms), ncclInvalidArgument);
    settle(comms);
    for (ncclComm_t comm : comms) {
        ASSERT_EQ(ncclCommFinalize(comm), ncclInProgress);
    }
    settle(comms);
    expect_sum(all_);
    destroy(&comms);
}

// --- Parts

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
        if (blocking) {
            ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
        } else {
            start_non_blocking(&parents);
            settle(parents);
        }
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
        EXPECT_LT(seconds_since(start), 5);
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
        if (blocking) {
            ASSERT_NCCL(ncclCommInitAll(parents, kDevices, nullptr));
        } else {
            start_non_blocking(&parents);
            settle(parents);
        }
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
        EXPECT_LT(seconds_since(start), 5);
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

// --- Other ways to begin, and ends in the middle of work

TEST_F(Lives, scalable_agrees_by_the_first_of_its_ids) {
    for (const bool blocking : {true, false}) {
        ncclUniqueId ids[2];
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking ? 1 : 0;
        ASSERT_NCCL(ncclGetUniqueId(&ids[0]));
        ASSERT_NCCL(ncclGetUniqueId(&ids[1]));
        ncclComm_t comms[kDevices] = {};
        ASSERT_NCCL(ncclGroupStart());
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_EQ(ncclCommInitRankScalable(&comms[i], kDevices, i, 2, ids, &config),
                      blocking ? ncclSuccess : ncclInProgress);
        }
        ASSERT_EQ(ncclGroupEnd(), blocking ? ncclSuccess : ncclInProgress);
        settle(comms);
        expect_compresses(comms, all_);
        destroy(&comms);
    }
}

TEST_F(Lives, init_all_inside_a_group) {
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
    ASSERT_NCCL(ncclGroupEnd());
    expect_compresses(comms, all_);
    destroy(&comms);
}

TEST_F(Lives, destroyed_right_after_compressed_calls) {
    for (const bool finalize : {false, true}) {
        ncclComm_t comms[kDevices] = {};
        ASSERT_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
        for (int call = 0; call < 5; ++call) {
            ASSERT_NCCL(all_reduce_all(comms));
        }
        if (finalize) {
            std::vector<std::thread> threads;
            for (ncclComm_t comm : comms) {
                threads.emplace_back([comm] { ASSERT_NCCL(ncclCommFinalize(comm)); });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
        }
        destroy(&comms);
        expect_sum(all_);
    }
}

TEST_F(Lives, abort_from_another_thread_ends_a_compressed_call) {
    for (const bool blocking : {true, false}) {
        ncclComm_t comms[kDevices] = {};
        if (blocking) {
            ASSERT_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
        } else {
            start_non_blocking(&comms);
            settle(comms);
        }
        ncclComm_t without_2[kDevices] = {comms[0], comms[1], nullptr, comms[3]};
        ASSERT_NE(all_reduce_all(without_2), ncclInvalidArgument);
        const auto start = Clock::now();
        std::thread([&] {
            for (ncclComm_t comm : comms) {
                ASSERT_NCCL(ncclCommAbort(comm));
            }
        }).join();
        for (cudaStream_t stream : streams_) {
            ASSERT_CUDA(cudaStreamSynchronize(stream));
        }
        EXPECT_LT(seconds_since(start), 3);
    }
}

}  // namespace
