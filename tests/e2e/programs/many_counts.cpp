// Calls whose counts never repeat, as packed sequences and routed tokens give them: argument 1 says
// how many counts, each once as an all-reduce and once as a message around the ring. Every 1000
// counts one result is compared. Prints "done kept KIB us US": what the process has allocated at
// the end beyond that after the first 1000 counts, and the host time of a call after those.
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kFirst = 4000;

// Of all threads. Not the process's size, which depends on how far streams lag behind.
long allocated_kib() {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<long>((info.uordblks + info.hblkhd) / 1024);
}

}  // namespace

int main(int, char** argv) {
    using Clock = std::chrono::steady_clock;
    const int counts = std::atoi(argv[1]);
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const size_t most = kFirst + static_cast<size_t>(counts);
    float *ones = nullptr, *sums = nullptr, *received = nullptr;
    for (float** buffer : {&ones, &sums, &received}) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(buffer), most * sizeof(float)));
    }
    std::vector<float> host(most, 1.0f);
    CHECK_CUDA(cudaMemcpy(ones, host.data(), most * sizeof(float), cudaMemcpyHostToDevice));
    long kept_before = 0;
    int64_t spent_ns = 0;
    for (int i = 0; i < counts; ++i) {
        const size_t count = kFirst + static_cast<size_t>(i);
        const auto begin = Clock::now();
        CHECK_NCCL(ncclAllReduce(ones, sums, count, ncclFloat32, ncclSum, comm, stream));
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclSend(ones, count, ncclFloat32, (rank + 1) % ranks, comm, stream));
        CHECK_NCCL(
            ncclRecv(received, count, ncclFloat32, (rank + ranks - 1) % ranks, comm, stream));
        CHECK_NCCL(ncclGroupEnd());
        spent_ns += i >= 1000 ? (Clock::now() - begin).count() : 0;
        // What waits in a stream's queue is not what is measured here.
        if (i % 20 == 0) {
            CHECK_CUDA(cudaStreamSynchronize(stream));
        }
        if (i % 1000 == 999) {
            float results[2] = {};
            CHECK_CUDA(cudaMemcpyAsync(&results[0], sums + count - 1, sizeof(float),
                                       cudaMemcpyDeviceToHost, stream));
            CHECK_CUDA(cudaMemcpyAsync(&results[1], received + count - 1, sizeof(float),
                                       cudaMemcpyDeviceToHost, stream));
            CHECK_CUDA(cudaStreamSynchronize(stream));
            EXPECT_THAT(std::fabs(results[0] - static_cast<float>(ranks)) < 0.1f &&
                            std::fabs(results[1] - 1.0f) < 0.05f,
                        "count %zu: %g and %g", count, static_cast<double>(results[0]),
                        static_cast<double>(results[1]));
            if (i == 999) {
                kept_before = allocated_kib();
            }
        }
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    std::printf("done kept %ld us %.2f\n", allocated_kib() - kept_before,
                static_cast<double>(spent_ns) / 3000.0 / std::max(1, counts - 1000));
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
