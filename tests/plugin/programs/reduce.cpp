// Creates a communicator and makes all-reduces of fp32 values every rank can predict; built as a
// program and, for dlopen_local, as a module. Options: --calls N, --count N, --exact (no codec may
// have touched the results), --flip BYTE [--flip-rank R] (of the unique id, on all ranks or one),
// --capture (the call into a graph, replayed, and the communicator destroyed before the graph),
// --chdir FOLDER before NCCL is called, --at-exit CALLS (grouped after a smaller group; the second
// time when static objects are destroyed). Ends with 0; with 10 + ncclResult_t and the text on
// stdout when the creation fails.
#include <unistd.h>

#include <cmath>
#include <vector>

#include "tests/support/nccl_program.h"

extern "C" [[gnu::visibility("default")]] int run_reduce(int argc, char** argv);

namespace {

// Makes calls and ends the communicator after the thread's own objects were destroyed.
struct AtExit {
    static constexpr size_t kCount = 5000;
    ncclComm_t comm = nullptr;
    int calls = 0;
    float* buffer = nullptr;

    void group(int of_calls) const {
        bool went = ncclGroupStart() == ncclSuccess;
        for (int call = 0; call < of_calls; ++call) {
            went &= ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclAvg, comm, nullptr) ==
                    ncclSuccess;
        }
        went &= ncclGroupEnd() == ncclSuccess && cudaDeviceSynchronize() == cudaSuccess;
        if (!went) {
            std::printf("%s\n", ncclGetLastError(nullptr));
            std::_Exit(6);
        }
    }
    ~AtExit() {
        if (comm == nullptr) {
            return;
        }
        group(calls);
        const ncclResult_t refused = ncclAllReduce(buffer, buffer, kCount, ncclFloat32,
                                                   static_cast<ncclRedOp_t>(77), comm, nullptr);
        if (refused != ncclInvalidArgument || ncclCommDestroy(comm) != ncclSuccess) {
            std::_Exit(7);
        }
    }
} at_exit;

}  // namespace

int run_reduce(int argc, char** argv) {
    int calls = 5, flip = -1, flip_rank = -1;
    size_t count = 50000;
    bool exact = false, capture = false;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--exact") {
            exact = true;
            continue;
        }
        if (name == "--capture") {
            capture = true;
            continue;
        }
        if (name == "--chdir") {
            EXPECT_THAT(chdir(argv[++i]) == 0, "no folder %s", argv[i]);
            continue;
        }
        const int value = i + 1 < argc ? std::atoi(argv[++i]) : 0;
        if (name == "--calls") {
            calls = value;
        } else if (name == "--count") {
            count = static_cast<size_t>(value);
        } else if (name == "--flip") {
            flip = value;
        } else if (name == "--flip-rank") {
            flip_rank = value;
        } else if (name == "--at-exit") {
            at_exit.calls = value;
        }
    }
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    int devices = 1;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(slimwire::test::integer_variable("LOCAL_RANK", 0) % devices));
    ncclUniqueId id = slimwire::test::exchange_id(rank);
    if (flip >= 0 && (flip_rank < 0 || flip_rank == rank)) {
        id.internal[flip] = static_cast<char>(id.internal[flip] ^ 0x10);
    }
    ncclComm_t comm = nullptr;
    if (const ncclResult_t created = ncclCommInitRank(&comm, ranks, id, rank);
        created != ncclSuccess) {
        std::printf("%s\n", ncclGetLastError(nullptr));
        return 10 + static_cast<int>(created);
    }
    std::vector<float> values(count), sums(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>((rank + 1) * (1 + static_cast<int>(i % 97)));
    }
    float* buffer = nullptr;
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), count * sizeof(float)));
    CHECK_CUDA(cudaStreamCreate(&stream));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    if (capture) {
        CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        CHECK_NCCL(ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, comm, stream));
        CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    }
    for (int call = 0; call < calls; ++call) {
        CHECK_CUDA(cudaMemcpyAsync(buffer, values.data(), count * sizeof(float),
                                   cudaMemcpyHostToDevice, stream));
        if (capture) {
            CHECK_CUDA(cudaGraphLaunch(ready, stream));
        } else {
            CHECK_NCCL(ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, comm, stream));
        }
        CHECK_CUDA(cudaMemcpyAsync(sums.data(), buffer, count * sizeof(float),
                                   cudaMemcpyDeviceToHost, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
        const float factor = static_cast<float>(ranks * (ranks + 1) / 2);
        for (size_t i = 0; i < count; ++i) {
            const float expected = factor * static_cast<float>(1 + static_cast<int>(i % 97));
            const float allowed = exact ? 0 : factor * 97 * 0.16f;
            EXPECT_THAT(std::fabs(sums[i] - expected) <= allowed,
                        "call %d, element %zu: %g, expected %g", call, i,
                        static_cast<double>(sums[i]), static_cast<double>(expected));
        }
    }
    CHECK_CUDA(cudaStreamDestroy(stream));
    if (at_exit.calls > 0) {
        at_exit.buffer = buffer;
        at_exit.comm = comm;
        at_exit.group(2);
        return 0;
    }
    CHECK_CUDA(cudaFree(buffer));
    CHECK_NCCL(ncclCommDestroy(comm));
    if (capture) {
        CHECK_CUDA(cudaGraphExecDestroy(ready));
        CHECK_CUDA(cudaGraphDestroy(graph));
    }
    return 0;
}

#ifndef REDUCE_AS_MODULE
int main(int argc, char** argv) {
    return run_reduce(argc, argv);
}
#endif
