// The last rank dies between two calls; the others must learn it from NCCL in bounded time. They
// end with 42 after ncclCommAbort, or 43 when no error came in 20 s.
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/support/nccl_program.h"

int main() {
    using Clock = std::chrono::steady_clock;
    constexpr size_t kCount = 100000;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    float* buffer = nullptr;
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    CHECK_CUDA(cudaStreamCreate(&stream));
    CHECK_CUDA(cudaMemset(buffer, 0, kCount * sizeof(float)));
    for (int i = 0; i < 20; ++i) {
        CHECK_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, stream));
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    std::this_thread::sleep_for(
        std::chrono::milliseconds(2500));  // the report is at most a second old
    if (rank == ranks - 1) {
        raise(SIGKILL);
    }
    ncclResult_t state = ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, stream);
    const auto until = Clock::now() + std::chrono::seconds(20);
    while (state == ncclSuccess && Clock::now() < until) {
        CHECK_NCCL(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::printf("%s\n", ncclGetErrorString(state));
    CHECK_NCCL(ncclCommAbort(comm));
    return state == ncclSuccess ? 43 : 42;
}
