// The exported functions as a program meets them: one process, two emulated devices, slimwire
// before the emulated NCCL in the search order as under LD_PRELOAD. Each case is a trap that was
// once open.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kRanks = 2;
constexpr size_t kSingleCount = 20000;

// Two ranks in this thread; compressed by SLIMWIRE_CODEC of the test's environment.
class Preload : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(ncclCommInitAll(comms_, kRanks, nullptr), ncclSuccess)
            << ncclGetLastError(nullptr);
        int ranks = 0;  // a function that slimwire does not export
        ASSERT_EQ(ncclCommCount(comms_[0], &ranks), ncclSuccess);
        ASSERT_EQ(ranks, kRanks);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking),
                      cudaSuccess);
            send_[rank] = device_buffer(static_cast<float>(rank + 1));
            recv_[rank] = device_buffer(0);
        }
    }

    void TearDown() override {
        for (int rank = 0; rank < kRanks; ++rank) {
            (void)cudaSetDevice(rank);
            (void)cudaDeviceSynchronize();
            if (comms_[rank] != nullptr) {
                EXPECT_EQ(ncclCommDestroy(comms_[rank]), ncclSuccess);
            }
            (void)cudaStreamDestroy(streams_[rank]);
            (void)cudaFree(send_[rank]);
            (void)cudaFree(recv_[rank]);
        }
    }

    // kSingleCount values that rise slowly around `level`, on the current device.
    static float* device_buffer(float level) {
        std::vector<float> host(kSingleCount);
        for (size_t i = 0; i < kSingleCount; ++i) {
            host[i] = level * (1 + static_cast<float>(i) / static_cast<float>(kSingleCount));
        }
        float* device = nullptr;
        EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), kSingleCount * sizeof(float)),
                  cudaSuccess);
        EXPECT_EQ(
            cudaMemcpy(device, host.data(), kSingleCount * sizeof(float), cudaMemcpyHostToDevice),
            cudaSuccess);
        return device;
    }

    void all_reduce(ncclRedOp_t op, int rank, cudaStream_t stream) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kSingleCount, ncclFloat32, op,
                                comms_[rank], stream),
                  ncclSuccess);
    }

    void all_reduce_all(bool on_null_streams = false) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            all_reduce(ncclSum, rank, on_null_streams ? nullptr : streams_[rank]);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }

    // Both results against scale * (sum of the inputs), within int8's error; and that they are not
    // exact, because then nothing was compressed.
    void expect_sum(float scale) {
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            std::vector<float> host(kSingleCount);
            ASSERT_EQ(cudaMemcpy(host.data(), recv_[rank], kSingleCount * sizeof(float),
                                 cudaMemcpyDeviceToHost),
                      cudaSuccess);
            size_t wrong = 0, inexact = 0;
            for (size_t i = 0; i < kSingleCount; ++i) {
                const float base = 1 + static_cast<float>(i) / static_cast<float>(kSingleCount);
                const float wanted = scale * 3 * base;
                wrong += std::abs(host[i] - wanted) > 0.02f * wanted ? 1 : 0;
                inexact += host[i] != wanted ? 1 : 0;
            }
            EXPECT_EQ(wrong, 0u) << "rank " << rank;
            EXPECT_GT(inexact, 0u) << "nothing was compressed";
        }
    }

    ncclComm_t comms_[kRanks] = {};
    cudaStream_t streams_[kRanks] = {};
    float* send_[kRanks] = {};
    float* recv_[kRanks] = {};
};

TEST_F(Preload, grouped_call_is_compressed) {
    all_reduce_all();
    expect_sum(1);
}

TEST_F(Preload, operator_destroyed_before_the_group_ends) {
    ncclRedOp_t ops[kRanks];
    float half = 0.5f;
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(ncclRedOpCreatePreMulSum(&ops[rank], &half, ncclFloat32, ncclScalarHostImmediate,
                                           comms_[rank]),
                  ncclSuccess);
    }
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
        all_reduce(ops[rank], rank, streams_[rank]);
        ASSERT_EQ(ncclRedOpDestroy(ops[rank], comms_[rank]), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
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
    all_reduce_all();
    expect_sum(1);
    std::swap(pinned, send_[0]);
    ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(Preload, a_call_on_an_invalid_capture_is_an_error_of_cuda) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_NE(cudaStreamSynchronize(streams_[0]), cudaSuccess) << "the capture is still valid";
    EXPECT_EQ(ncclAllReduce(send_[0], recv_[0], kSingleCount, ncclFloat32, ncclSum, comms_[0],
                            streams_[0]),
              ncclUnhandledCudaError);
    cudaGraph_t graph = nullptr;
    ASSERT_NE(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    (void)cudaGetLastError();
    all_reduce_all();
    expect_sum(1);
}

TEST_F(Preload, abort_inside_a_group_is_an_error_at_its_end) {
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
        all_reduce(ncclSum, rank, streams_[rank]);
    }
    for (ncclComm_t& comm : comms_) {
        EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
        comm = nullptr;
    }
    EXPECT_NE(ncclGroupEnd(), ncclSuccess);
}

// To NCCL a group is on each of its streams: each call reads what was made on any of them before,
// and what is on any of them behind reads each result.
TEST_F(Preload, streams_of_a_group_wait_for_each_other) {
    const auto hold = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    constexpr size_t kBytes = kSingleCount * sizeof(float);
    cudaStream_t late[kRanks];
    float *made[kRanks], *other[kRanks], *copy[kRanks];
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(cudaStreamCreateWithFlags(&late[rank], cudaStreamNonBlocking), cudaSuccess);
        for (float** buffer : {&made[rank], &other[rank], &copy[rank]}) {
            *buffer = device_buffer(0);
        }
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
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(ncclAllReduce(made[rank], recv_[rank], kSingleCount, ncclFloat32, ncclSum,
                                    comms_[rank], streams_[rank]),
                      ncclSuccess);
            ASSERT_EQ(ncclAllReduce(send_[rank], other[rank], kSingleCount, ncclFloat32,
                                    native ? ncclMax : ncclSum, comms_[rank], late[rank]),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemcpyAsync(copy[rank], other[rank], kBytes, cudaMemcpyDeviceToDevice,
                                      streams_[rank]),
                      cudaSuccess);
        }
        expect_sum(1);
        for (int rank = 0; rank < kRanks; ++rank) {
            float first = 0;
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaMemcpy(&first, copy[rank], sizeof(first), cudaMemcpyDeviceToHost),
                      cudaSuccess);
            EXPECT_NEAR(first, native ? 2 : 3, 0.1) << "native: " << native;
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
    all_reduce(ncclSum, 0, streams_[0]);
    all_reduce(ncclSum, 0, cudaStreamPerThread);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// Two threads' default streams have one handle; the second call must still wait for the first.
TEST_F(Preload, null_and_per_thread_stream) {
    const auto hold = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(150)); };
    for (const bool slow : {true, false}) {
        std::thread([&] {
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            for (int rank = 0; rank < kRanks; ++rank) {
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                if (slow && rank == 0) {
                    ASSERT_EQ(cudaLaunchHostFunc(cudaStreamPerThread, hold, nullptr), cudaSuccess);
                }
                all_reduce(ncclSum, rank, cudaStreamPerThread);
            }
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        }).join();
    }
    expect_sum(1);
    all_reduce_all(true);
    expect_sum(1);
}

TEST_F(Preload, pending_cuda_error_of_the_program_survives) {
    for (int round = 0; round < 3; ++round) {
        ASSERT_NE(cudaMalloc(nullptr, 16), cudaSuccess);  // leaves a last error
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kSingleCount, ncclFloat32, ncclSum,
                                    comms_[rank], streams_[rank]),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue) << "round " << round;
        expect_sum(1);
    }
}

TEST_F(Preload, device_restored) {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], kSingleCount, ncclFloat32, ncclSum,
                                comms_[rank], streams_[rank]),
                  ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
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
        all_reduce_all();
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
