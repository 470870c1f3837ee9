// Calls whose counts never repeat, as packed sequences and routed tokens give them: argument 1 says
// how many counts, each once as an all-reduce and once as a message around the ring. Every 1000
// counts one result is compared. Prints "done kept KIB us US": what the process has allocated at
// the end beyond that after the first 1000 counts, and the host time of a call after those.
//   many_counts COUNTS line
// each count in groups alone: with the all-reduce a message to the next rank of a line, then one
// back, so that ranks in the middle have twice the messages. Prints "done".
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

struct Line {
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    const float* ones;
    float *sums, *received;

    void send(size_t count, int to) const {
        if (to >= 0 && to < ranks) {
            CHECK_NCCL(ncclSend(ones, count, ncclFloat32, to, comm, stream));
        }
    }
    void receive(size_t count, int from) const {
        if (from >= 0 && from < ranks) {
            CHECK_NCCL(ncclRecv(received, count, ncclFloat32, from, comm, stream));
        }
    }
    [[nodiscard]] float last(const float* of, size_t count) const {
        float value = 0;
        CHECK_CUDA(
            cudaMemcpyAsync(&value, of + count - 1, sizeof(float), cudaMemcpyDeviceToHost, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
        return value;
    }
    void run(size_t count) const {
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclAllReduce(ones, sums, count, ncclFloat32, ncclSum, comm, stream));
        receive(count, rank - 1);
        send(count, rank + 1);
        CHECK_NCCL(ncclGroupEnd());
        CHECK_NCCL(ncclGroupStart());
        receive(count, rank + 1);
        send(count, rank - 1);
        CHECK_NCCL(ncclGroupEnd());
        const float sum = last(sums, count), got = last(received, count);
        EXPECT_THAT(
            std::fabs(sum - static_cast<float>(ranks)) < 0.1f && std::fabs(got - 1.0f) < 0.05f,
            "count %zu: %g and %g", count, static_cast<double>(sum), static_cast<double>(got));
    }
};

}  // namespace

int main(int argc, char** argv) {
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
    if (argc > 2) {
        const Line line{rank, ranks, comm, stream, ones, sums, received};
        for (int i = 0; i < counts; ++i) {
            line.run(kFirst + static_cast<size_t>(i));
        }
        std::puts("done");
        CHECK_NCCL(ncclCommDestroy(comm));
        return 0;
    }
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
