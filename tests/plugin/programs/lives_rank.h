// What the ranks of jobs share in which communicators come and go (lives.cpp, growing.cpp): where a
// rank stands, and the compressed or native call that proves a communicator whole. For one source
// file of a program.
#pragma once

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/nccl_program.h"

namespace slimwire::test {

using Clock = std::chrono::steady_clock;

inline constexpr size_t kCount = 60'000;
inline constexpr double kBoundSeconds = 20;  // of what takes a moment, and less than ranks wait

inline int g_rank = 0;
inline int g_ranks = 1;
inline int g_device = 0;  // the last: a thread that sets none begins with the first
inline cudaStream_t g_stream = nullptr;
inline float* g_data = nullptr;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

inline float base(size_t i) {
    return 1 + static_cast<float>(i % 997) / 997.0f;
}

inline ncclResult_t all_reduce(ncclComm_t comm) {
    return ncclAllReduce(g_data, g_data, kCount, ncclFloat32, ncclSum, comm, g_stream);
}

// What the communicator says once it is not busy; ncclInProgress after a minute.
inline ncclResult_t settled(ncclComm_t comm) {
    const auto start = Clock::now();
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress && seconds_since(start) < 60) {
        CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state;
}

// Sums (rank + 1) * base over the ranks of `comm`, `calls` times.
inline void reduce(ncclComm_t comm, bool compressed, int calls = 3) {
    int rank = 0, ranks = 0;
    CHECK_NCCL(ncclCommUserRank(comm, &rank));
    CHECK_NCCL(ncclCommCount(comm, &ranks));
    std::vector<float> values(kCount), sums(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        values[i] = static_cast<float>(rank + 1) * base(i);
    }
    for (int call = 0; call < calls; ++call) {
        CHECK_CUDA(cudaMemcpyAsync(g_data, values.data(), kCount * sizeof(float),
                                   cudaMemcpyHostToDevice, g_stream));
        const ncclResult_t called = all_reduce(comm);
        EXPECT_THAT(called == ncclSuccess || called == ncclInProgress, "call: %d: %s",
                    static_cast<int>(called), ncclGetLastError(nullptr));
        const ncclResult_t launched = settled(comm);
        EXPECT_THAT(launched == ncclSuccess, "launch: %d", static_cast<int>(launched));
        CHECK_CUDA(cudaMemcpyAsync(sums.data(), g_data, kCount * sizeof(float),
                                   cudaMemcpyDeviceToHost, g_stream));
        CHECK_CUDA(cudaStreamSynchronize(g_stream));
        const float factor = static_cast<float>(ranks * (ranks + 1) / 2);
        size_t inexact = 0;
        for (size_t i = 0; i < kCount; ++i) {
            const float error = std::fabs(sums[i] - factor * base(i));
            EXPECT_THAT(error <= factor * 2 * 0.02f, "element %zu: %g", i,
                        static_cast<double>(sums[i]));
            inexact += error > 1e-4f * factor ? 1 : 0;
        }
        EXPECT_THAT(compressed == (inexact > kCount / 10), "%zu elements are inexact", inexact);
    }
}

// Device, stream and data of this rank.
inline void start_rank() {
    g_rank = launcher_rank();
    g_ranks = launcher_ranks();
    CHECK_CUDA(cudaGetDeviceCount(&g_device));
    CHECK_CUDA(cudaSetDevice(--g_device));
    CHECK_CUDA(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&g_data), kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(g_data, 0, kCount * sizeof(float)));
    CHECK_CUDA(cudaDeviceSynchronize());
}

inline ncclComm_t join(const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, g_ranks, id, g_rank));
    return comm;
}

// What a job is told to do, by its name.
struct Situation {
    const char* name;
    int (*run)(const ncclUniqueId&);
};
template <size_t kCount>
int run_situation(const Situation (&all)[kCount], int argc, char** argv) {
    start_rank();
    const ncclUniqueId id = exchange_id(g_rank);
    for (const Situation& situation : all) {
        if (argc == 2 && std::string(argv[1]) == situation.name) {
            return situation.run(id);
        }
    }
    std::fprintf(stderr, "usage: %s SITUATION\n", argv[0]);
    return 2;
}

// A communicator with a stream and buffers of its own.
struct Place {
    explicit Place(const std::string& name) : comm(join(exchange_id(g_rank, name))) {
        const size_t all = kCount * static_cast<size_t>(g_ranks);
        CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&given), all * sizeof(float)));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&taken), all * sizeof(float)));
        std::vector<float> values(all);
        for (size_t i = 0; i < all; ++i) {
            values[i] = static_cast<float>(g_rank + 1) * base(i);
        }
        CHECK_CUDA(cudaMemcpy(given, values.data(), all * sizeof(float), cudaMemcpyHostToDevice));
    }
    void calls() const {
        const int next = (g_rank + 1) % g_ranks, before = (g_rank + g_ranks - 1) % g_ranks;
        CHECK_NCCL(ncclAllReduce(given, taken, kCount, ncclFloat32, ncclSum, comm, stream));
        CHECK_NCCL(ncclReduceScatter(given, taken, kCount, ncclFloat32, ncclSum, comm, stream));
        CHECK_NCCL(ncclAllGather(given, taken, kCount, ncclFloat32, comm, stream));
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclSend(given, kCount, ncclFloat32, next, comm, stream));
        CHECK_NCCL(ncclRecv(taken, kCount, ncclFloat32, before, comm, stream));
        CHECK_NCCL(ncclGroupEnd());
    }

    ncclComm_t comm;
    cudaStream_t stream = nullptr;
    float *given = nullptr, *taken = nullptr;
};

}  // namespace slimwire::test
