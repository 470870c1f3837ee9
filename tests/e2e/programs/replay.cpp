// The same sequence of operations, step after step, on two communicators of the same ranks: called
// one by one on the first, captured into a graph once and replayed on the second. All bits of all
// results must be the same in every step, also when the second goes back to plain calls in between.
// Usage: replay STEPS COUNT [shared]. Prints "replayed STEPS". shared: others use the device's
// memory too, so what is free says nothing.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

struct Sequence {
    ncclComm_t comm = nullptr;
    int rank = 0, ranks = 0;
    size_t count = 0;
    cudaStream_t main = nullptr, side = nullptr;
    cudaEvent_t forked = nullptr, joined = nullptr;
    float *first = nullptr, *second = nullptr, *scattered = nullptr, *gathered = nullptr,
          *received = nullptr;

    float* make(size_t elems) const {
        void* memory = nullptr;
        CHECK_CUDA(cudaMalloc(&memory, elems * sizeof(float)));
        CHECK_CUDA(cudaMemset(memory, 0, elems * sizeof(float)));
        return static_cast<float*>(memory);
    }

    Sequence(ncclComm_t own, size_t elems) : comm(own), count(elems) {
        CHECK_NCCL(ncclCommCount(comm, &ranks));
        CHECK_NCCL(ncclCommUserRank(comm, &rank));
        CHECK_CUDA(cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking));
        CHECK_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        CHECK_CUDA(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
        CHECK_CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
        first = make(count);
        second = make(count * static_cast<size_t>(ranks));
        scattered = make(count);
        gathered = make(count * static_cast<size_t>(ranks));
        received = make(count);
        CHECK_CUDA(cudaDeviceSynchronize());
    }

    void upload(uint32_t step) {
        std::vector<float> values(count * static_cast<size_t>(ranks));
        uint32_t state = step * 2654435761u + static_cast<uint32_t>(rank) * 40503u + 1;
        for (float& value : values) {
            state = state * 1664525u + 1013904223u;
            value = static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) * 0x1p-20f;
        }
        CHECK_CUDA(cudaMemcpyAsync(first, values.data(), count * sizeof(float),
                                   cudaMemcpyHostToDevice, main));
        CHECK_CUDA(cudaMemcpyAsync(second, values.data(), values.size() * sizeof(float),
                                   cudaMemcpyHostToDevice, main));
        CHECK_CUDA(cudaStreamSynchronize(main));
    }

    void call() {
        CHECK_NCCL(ncclAllReduce(first, first, count, ncclFloat32, ncclAvg, comm, main));
        CHECK_CUDA(cudaEventRecord(forked, main));
        CHECK_CUDA(cudaStreamWaitEvent(side, forked, 0));
        CHECK_NCCL(ncclReduceScatter(second, scattered, count, ncclFloat32, ncclSum, comm, side));
        CHECK_CUDA(cudaEventRecord(joined, side));
        CHECK_CUDA(cudaStreamWaitEvent(main, joined, 0));
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclAllGather(scattered, gathered, count, ncclFloat32, comm, main));
        CHECK_NCCL(ncclSend(first, count, ncclFloat32, (rank + 1) % ranks, comm, main));
        CHECK_NCCL(ncclRecv(received, count, ncclFloat32, (rank + ranks - 1) % ranks, comm, main));
        CHECK_NCCL(ncclGroupEnd());
    }

    std::vector<float> results() {
        std::vector<float> all(count * (3 + static_cast<size_t>(ranks)));
        float* to = all.data();
        const auto take = [&](const float* from, size_t elems) {
            CHECK_CUDA(
                cudaMemcpyAsync(to, from, elems * sizeof(float), cudaMemcpyDeviceToHost, main));
            to += elems;
        };
        take(first, count);
        take(scattered, count);
        take(received, count);
        take(gathered, count * static_cast<size_t>(ranks));
        CHECK_CUDA(cudaStreamSynchronize(main));
        return all;
    }
};

}  // namespace

int main(int argc, char** argv) {
    const uint32_t steps = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 20;
    const size_t count = argc > 2 ? static_cast<size_t>(std::atoll(argv[2])) : 4097;
    const bool shared = argc > 3 && std::strcmp(argv[3], "shared") == 0;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t world = nullptr, other = nullptr;
    CHECK_NCCL(ncclCommInitRank(&world, ranks, id, rank));
    CHECK_NCCL(ncclCommSplit(world, 0, rank, &other, nullptr));
    size_t free_before = 0, total = 0;
    {
        Sequence called(world, count), replayed(other, count);
        // Both begin with a plain step, which makes connections and residuals.
        for (Sequence* sequence : {&called, &replayed}) {
            sequence->upload(0);
            sequence->call();
            CHECK_CUDA(cudaStreamSynchronize(sequence->main));
        }
        EXPECT_THAT(called.results() == replayed.results(), "plain steps differ");
        CHECK_CUDA(cudaMemGetInfo(&free_before, &total));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t ready = nullptr;
        CHECK_CUDA(cudaStreamBeginCapture(replayed.main, cudaStreamCaptureModeGlobal));
        replayed.call();
        CHECK_CUDA(cudaStreamEndCapture(replayed.main, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
        CHECK_CUDA(cudaGraphDestroy(graph));  // the executable graph keeps what it needs
        for (uint32_t step = 1; step <= steps; ++step) {
            called.upload(step);
            called.call();
            replayed.upload(step);
            if (step % 7 == 3) {
                replayed.call();
            } else {
                CHECK_CUDA(cudaGraphLaunch(ready, replayed.main));
            }
            const std::vector<float> expected = called.results(), actual = replayed.results();
            const auto wrong = std::mismatch(
                expected.begin(), expected.end(), actual.begin(),
                [](float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0; });
            EXPECT_THAT(wrong.first == expected.end(),
                        "step %u, element %td: called %g, replayed %g", step,
                        wrong.first - expected.begin(), static_cast<double>(*wrong.first),
                        static_cast<double>(*wrong.second));
        }
        CHECK_CUDA(cudaGraphExecDestroy(ready));
    }
    CHECK_NCCL(ncclCommDestroy(other));
    // With its communicator the graph's scratch is gone (programs/graph_left.cpp: used again
    // before).
    size_t free_after = 0;
    CHECK_CUDA(cudaMemGetInfo(&free_after, &total));
    EXPECT_THAT(shared || free_after >= free_before, "%zu bytes are not free again",
                free_before - free_after);
    CHECK_NCCL(ncclCommDestroy(world));
    std::printf("replayed %u\n", steps);
    return 0;
}
