// The exported functions as a program meets them: one process, two emulated devices, slimwire
// before the emulated NCCL in the search order as under LD_PRELOAD. Each case is a trap that was
// once open.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kSingleCount = 20000;

// Two ranks in this thread; compressed by SLIMWIRE_CODEC of the test's environment.
class Preload : public slimwire::test::TwoDevices {
  protected:
    Preload() : TwoDevices(kSingleCount) {}
    void SetUp() override {
        TwoDevices::SetUp();
        int ranks = 0;  // a function that slimwire does not export
        ASSERT_EQ(ncclCommCount(comms_[0], &ranks), ncclSuccess);
        ASSERT_EQ(ranks, kRanks);
        for (int rank = 0; rank < kRanks; ++rank) {
            Values values(kSingleCount);
            for (size_t i = 0; i < kSingleCount; ++i) {
                values[i] = static_cast<float>(rank + 1) * base(i);
            }
            fill(rank, values);
            ASSERT_EQ(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking),
                      cudaSuccess);
        }
    }
    void TearDown() override {
        for (int rank = 0; rank < kRanks; ++rank) {
            (void)cudaSetDevice(rank);
            (void)cudaDeviceSynchronize();
            (void)cudaStreamDestroy(streams_[rank]);
        }
        TwoDevices::TearDown();
    }

    // Values that rise slowly.
    static float base(size_t i) {
        return 1 + static_cast<float>(i) / static_cast<float>(kSingleCount);
    }
    ncclResult_t sum_on(int rank, cudaStream_t stream, ncclRedOp_t op = ncclSum) {
        return ncclAllReduce(send_[rank], recv_[rank], kSingleCount, ncclFloat32, op, comms_[rank],
                             stream);
    }
    void sum_all() {
        group([&](int rank) { return sum_on(rank, streams_[rank]); });
    }
    // On whatever device is the current one.
    void sum_all_on_this_device() {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(sum_on(rank, streams_[rank]), ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    // Both results against scale * (sum of the inputs), within int8's error; and that they are not
    // exact, because then nothing was compressed.
    void expect_sum(float scale) {
        for (int rank = 0; rank < kRanks; ++rank) {
            const Values got = result(rank, kSingleCount);
            size_t wrong = 0, inexact = 0;
            for (size_t i = 0; i < kSingleCount; ++i) {
                const float wanted = scale * 3 * base(i);
                wrong += std::abs(got[i] - wanted) > 0.02f * wanted ? 1 : 0;
                inexact += got[i] != wanted ? 1 : 0;
            }
            EXPECT_EQ(wrong, 0u) << "rank " << rank;
            EXPECT_GT(inexact, 0u) << "nothing was compressed";
        }
    }

    cudaStream_t streams_[kRanks] = {};
};

TEST_F(Preload, grouped_call_is_compressed) {
    sum_all();
    expect_sum(1);
}

TEST_F(Preload, operator_destroyed_before_the_group_ends) {
    const ncclRedOp_t op = half_sum();
    group([&](int rank) {
        const ncclResult_t queued = sum_on(rank, streams_[rank], op);
        EXPECT_EQ(ncclRedOpDestroy(op, comms_[rank]), ncclSuccess);
        return queued;
    });
    expect_sum(0.5f);
}

TEST_F(Preload, operator_made_for_another_type) {
    float half = 0.5f;
    ncclRedOp_t op;
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, comms_[0]),
              ncclSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(
        ncclAllReduce(send_[0], recv_[0], kSingleCount, ncclBfloat16, op, comms_[0], streams_[0]),
        ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(op, comms_[0]), ncclSuccess);
}

// NCCL takes pinned memory, and which ranks use some follows from nothing that the others know.
TEST_F(Preload, pinned_memory_on_one_rank) {
    float* pinned = nullptr;
    ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), kSingleCount * sizeof(float)),
              cudaSuccess);
    ASSERT_EQ(cudaMemcpy(pinned, send_[0], kSingleCount * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
    std::swap(pinned, send_[0]);
    sum_all();
    expect_sum(1);
    std::swap(pinned, send_[0]);
    ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(Preload, a_call_on_an_invalid_capture_is_an_error_of_cuda) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_NE(cudaStreamSynchronize(streams_[0]), cudaSuccess) << "the capture is still valid";
    EXPECT_EQ(sum_on(0, streams_[0]), ncclUnhandledCudaError);
    cudaGraph_t graph = nullptr;
    ASSERT_NE(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    (void)cudaGetLastError();
    sum_all();
    expect_sum(1);
}

// To NCCL a group is on each of its streams: each call reads what was made on any of them before,
// and what is on any of them behind reads each result.
TEST_F(Preload, streams_of_a_group_wait_for_each_other) {
    const auto hold = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    constexpr size_t kBytes = kSingleCount * sizeof(float);
    cudaStream_t late[kRanks];
    float *made[kRanks], *other[kRanks], *copy[kRanks];
    for (int rank = 0; rank < kRanks; ++rank) {
        for (float** buffer : {&made[rank], &other[rank], &copy[rank]}) {
            *buffer = buffer_of(rank, kSingleCount);
        }
        ASSERT_EQ(cudaStreamCreateWithFlags(&late[rank], cudaStreamNonBlocking), cudaSuccess);
    }
    for (const bool native : {false, true}) {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemset(made[rank], 0, kBytes), cudaSuccess);
            ASSERT_EQ(cudaMemset(other[rank], 0, kBytes), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            ASSERT_EQ(cudaLaunchHostFunc(late[rank], hold, nullptr), cudaSuccess);
            ASSERT_EQ(cudaMemcpyAsync(made[rank], send_[rank], kBytes, cudaMemcpyDeviceToDevice,
                                      late[rank]),
                      cudaSuccess);
        }
        group([&](int rank) {
            EXPECT_EQ(ncclAllReduce(made[rank], recv_[rank], kSingleCount, ncclFloat32, ncclSum,
                                    comms_[rank], streams_[rank]),
                      ncclSuccess);
            return ncclAllReduce(send_[rank], other[rank], kSingleCount, ncclFloat32,
                                 native ? ncclMax : ncclSum, comms_[rank], late[rank]);
        });
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemcpyAsync(copy[rank], other[rank], kBytes, cudaMemcpyDeviceToDevice,
                                      streams_[rank]),
                      cudaSuccess);
        }
        expect_sum(1);
        for (int rank = 0; rank < kRanks; ++rank) {
            EXPECT_NEAR(download(rank, copy[rank], 1)[0], native ? 2 : 3, 0.1)
                << "native: " << native;
        }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(cudaStreamDestroy(late[rank]), cudaSuccess);
        for (float* buffer : {made[rank], other[rank], copy[rank]}) {
            ASSERT_EQ(cudaFree(buffer), cudaSuccess);
        }
    }
}

TEST_F(Preload, streams_of_a_group_in_part_captured) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(sum_on(0, streams_[0]), ncclSuccess);
    ASSERT_EQ(sum_on(0, cudaStreamPerThread), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// Graphs end while the call of one device waits for the other's: the other's must not wait for the
// first device, or both wait for ever. And memory that graphs leave is used again, and given back
// when the communicators end.
TEST_F(Preload, memory_of_graphs_that_end) {
    const auto end_communicators = [&] {
        for (ncclComm_t comm : comms_) {
            EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
        }
        return free_bytes();
    };
    const size_t at_first = end_communicators();
    ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess);
    sum_all();
    expect_sum(1);
    size_t after_one = 0;
    for (int round = 0; round < 20; ++round) {
        cudaGraph_t graphs[kRanks];
        for (cudaStream_t stream : streams_) {
            ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
        }
        sum_all();
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaStreamEndCapture(streams_[rank], &graphs[rank]), cudaSuccess);
        }
        ASSERT_EQ(sum_on(0, streams_[0]), ncclSuccess);
        for (cudaGraph_t graph : graphs) {
            ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        }
        ASSERT_EQ(sum_on(1, streams_[1]), ncclSuccess);
        expect_sum(1);
        after_one = round == 0 ? free_bytes() : after_one;
    }
    EXPECT_EQ(free_bytes(), after_one);
    EXPECT_GE(end_communicators(), at_first);
    ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess);
}

// Two threads' default streams have one handle; the second call must still wait for the first.
TEST_F(Preload, null_and_per_thread_stream) {
    const auto hold = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(150)); };
    for (const bool slow : {true, false}) {
        std::thread([&] {
            group([&](int rank) {
                if (slow && rank == 0) {
                    EXPECT_EQ(cudaLaunchHostFunc(cudaStreamPerThread, hold, nullptr), cudaSuccess);
                }
                return sum_on(rank, cudaStreamPerThread);
            });
        }).join();
    }
    expect_sum(1);
    group([&](int rank) { return sum_on(rank, nullptr); });
    expect_sum(1);
}

TEST_F(Preload, pending_cuda_error_of_the_program_survives) {
    for (int round = 0; round < 3; ++round) {
        ASSERT_NE(cudaMalloc(nullptr, 16), cudaSuccess);  // leaves a last error
        sum_all_on_this_device();
        EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue) << "round " << round;
        expect_sum(1);
    }
}

TEST_F(Preload, device_restored) {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    sum_all_on_this_device();
    int device = -1;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 1);
    expect_sum(1);
}

// The same handle value must not find the state of its dead namesake.
TEST_F(Preload, comm_handle_reused) {
    for (int round = 0; round < 8; ++round) {
        for (ncclComm_t& comm : comms_) {
            ASSERT_EQ(round % 2 == 0 ? ncclCommDestroy(comm) : ncclCommAbort(comm), ncclSuccess);
        }
        ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess);
        sum_all();
        expect_sum(1);
    }
}

bool has_tail(const ncclUniqueId& id) {
    const char zero[64] = {};
    return std::memcmp(id.internal + 64, zero, sizeof(zero)) != 0;
}

// A child has none of our threads, but it must still have an NCCL.
TEST(PreloadProcess, fork_after_init) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_TRUE(has_tail(id));
    const pid_t child = fork();
    if (child == 0) {
        ncclUniqueId own;
        const bool works = ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess &&
                           ncclGetUniqueId(&own) == ncclSuccess && !has_tail(own);
        _exit(works ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST(PreloadProcess, nccl_comm_id_leaves_the_id_alone) {
    ASSERT_EQ(setenv("NCCL_COMM_ID", "127.0.0.1:45111", 1), 0);
    ncclUniqueId id;
    const ncclResult_t made = ncclGetUniqueId(&id);
    ASSERT_EQ(unsetenv("NCCL_COMM_ID"), 0);
    ASSERT_EQ(made, ncclSuccess);
    EXPECT_FALSE(has_tail(id));
}

}  // namespace
