// An all-reduce captured into a graph, replayed, the communicator destroyed before the graph.
#include <cmath>
#include <vector>

#include "tests/support/nccl_program.h"

int main() {
    constexpr size_t kCount = 50000;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    float* buffer = nullptr;
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, stream));
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&ready, graph, 0));
    std::vector<float> values(kCount), sums(kCount);
    for (int replay = 0; replay < 4; ++replay) {
        for (size_t i = 0; i < kCount; ++i) {
            values[i] = static_cast<float>(rank + replay) + static_cast<float>(i % 13);
        }
        CHECK_CUDA(cudaMemcpyAsync(buffer, values.data(), kCount * sizeof(float),
                                   cudaMemcpyHostToDevice, stream));
        CHECK_CUDA(cudaGraphLaunch(ready, stream));
        CHECK_CUDA(cudaMemcpyAsync(sums.data(), buffer, kCount * sizeof(float),
                                   cudaMemcpyDeviceToHost, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < kCount; ++i) {
            const float expected = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * replay) +
                                   static_cast<float>(ranks) * static_cast<float>(i % 13);
            // Twice half a step of the coarsest codec used, of the sum of the ranks' largest.
            EXPECT_THAT(std::fabs(sums[i] - expected) <= 0.15f * static_cast<float>(ranks) * 17.0f,
                        "replay %d, element %zu: %g, expected %g", replay, i,
                        static_cast<double>(sums[i]), static_cast<double>(expected));
        }
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    CHECK_CUDA(cudaGraphExecDestroy(ready));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return 0;
}
