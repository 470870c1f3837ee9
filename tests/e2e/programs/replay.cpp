// The same sequence of operations, step after step, on two communicators of the same ranks: called
// one by one on the first, captured into a graph once and replayed on the second. All bits of all
// results must be the same in every step, also when the second goes back to plain calls in between.
// Usage: replay STEPS COUNT [shared | marked | first | alone [STATE]]. Prints "replayed STEPS".
// shared: others use the device's memory too, so what is free says nothing. marked: steps are told;
// first: also, and no plain step comes first; alone: rank 0 alone has a graph, where the others
// call. STATE: a pattern of files, loaded before where they are and written behind the steps.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
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

struct Options {
    uint32_t steps = 20;
    size_t count = 4097;
    std::string way;
    std::string state;
    [[nodiscard]] bool is(const char* what) const { return way == what; }
    [[nodiscard]] bool marks() const { return is("marked") || is("first") || is("alone"); }
};

void mark(const Options& options, uint64_t step) {
    EXPECT_THAT(!options.marks() || slimwire_mark_step(step) == SLIMWIRE_OK, "%s",
                slimwire_last_error());
}

cudaGraphExec_t capture(Sequence* sequence) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    CHECK_CUDA(cudaStreamBeginCapture(sequence->main, cudaStreamCaptureModeGlobal));
    sequence->call();
    CHECK_CUDA(cudaStreamEndCapture(sequence->main, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));  // the executable graph keeps what it needs
    return ready;
}

void compare(Sequence* called, Sequence* replayed, uint32_t step) {
    const std::vector<float> expected = called->results(), actual = replayed->results();
    const auto wrong =
        std::mismatch(expected.begin(), expected.end(), actual.begin(),
                      [](float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0; });
    EXPECT_THAT(wrong.first == expected.end(), "step %u, element %td: called %g, replayed %g", step,
                wrong.first - expected.begin(), static_cast<double>(*wrong.first),
                static_cast<double>(*wrong.second));
}

// Returns how much memory is free behind the plain step, which makes connections and residuals.
size_t run(const Options& options, ncclComm_t world, ncclComm_t other) {
    Sequence called(world, options.count), replayed(other, options.count);
    uint32_t step = 0;
    size_t free_before = 0, total = 0;
    mark(options, step);
    if (!options.is("first")) {
        for (Sequence* sequence : {&called, &replayed}) {
            sequence->upload(step);
            sequence->call();
        }
        compare(&called, &replayed, step);
        CHECK_CUDA(cudaMemGetInfo(&free_before, &total));
        mark(options, ++step);
    }
    const bool captures = !options.is("alone") || called.rank == 0;
    cudaGraphExec_t ready = captures ? capture(&replayed) : nullptr;
    for (;;) {
        called.upload(step);
        called.call();
        replayed.upload(step);
        if (step % 7 == 3 || !captures) {
            replayed.call();
        } else {
            CHECK_CUDA(cudaGraphLaunch(ready, replayed.main));
        }
        compare(&called, &replayed, step);
        if (step == options.steps) {
            break;
        }
        mark(options, ++step);
    }
    if (captures) {
        CHECK_CUDA(cudaGraphExecDestroy(ready));
    }
    EXPECT_THAT(options.state.empty() || slimwire_save_state(options.state.c_str()) == SLIMWIRE_OK,
                "%s", slimwire_last_error());
    return free_before;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    options.steps = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : options.steps;
    options.count = argc > 2 ? static_cast<size_t>(std::atoll(argv[2])) : options.count;
    options.way = argc > 3 ? argv[3] : "";
    options.state = argc > 4 ? argv[4] : "";
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    if (!options.state.empty() && slimwire_load_state(options.state.c_str()) == SLIMWIRE_OK) {
        std::puts("loaded");
    }
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t world = nullptr, other = nullptr;
    CHECK_NCCL(ncclCommInitRank(&world, ranks, id, rank));
    CHECK_NCCL(ncclCommSplit(world, 0, rank, &other, nullptr));
    const size_t free_before = run(options, world, other);
    CHECK_NCCL(ncclCommDestroy(other));
    // With its communicator the graph's scratch is gone (tests/plugin/in_process_test.cpp: used
    // again before).
    size_t free_after = 0, total = 0;
    CHECK_CUDA(cudaMemGetInfo(&free_after, &total));
    EXPECT_THAT(options.is("shared") || free_after >= free_before, "%zu bytes are not free again",
                free_before - free_after);
    CHECK_NCCL(ncclCommDestroy(world));
    std::printf("replayed %u\n", options.steps);
    return 0;
}
