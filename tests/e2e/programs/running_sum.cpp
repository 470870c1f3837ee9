// Reduces the same gradient again and again, as an optimizer with a constant gradient would see it,
// and prints the largest error of the running sum of results against the exact one, in units of the
// sum over ranks of the largest gradient, after a quarter, a half and all steps: "error A B C".
// Two tensors take turns, so that a residual that followed the signature alone would mix them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 20000;

// Of magnitude at most 1; different on ranks and tensors.
float gradient(int rank, int tensor, size_t i) {
    const double wave = std::sin(0.37 * static_cast<double>(i) + 1.9 * rank + 4.1 * tensor);
    return static_cast<float>(wave * (i % 5 == 0 ? 1.0 : 0.11));
}

}  // namespace

int main(int argc, char** argv) {
    const int steps = argc > 1 ? std::atoi(argv[1]) : 64;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    float* buffers[2];
    std::vector<double> sums[2], exact[2];
    std::vector<float> mine[2], result(kCount);
    for (int tensor = 0; tensor < 2; ++tensor) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffers[tensor]), kCount * sizeof(float)));
        sums[tensor].assign(kCount, 0);
        exact[tensor].assign(kCount, 0);
        for (size_t i = 0; i < kCount; ++i) {
            mine[tensor].push_back(gradient(rank, tensor, i));
            for (int r = 0; r < ranks; ++r) {
                exact[tensor][i] += static_cast<double>(gradient(r, tensor, i));
            }
        }
    }
    std::printf("error");
    for (int step = 1; step <= steps; ++step) {
        for (int tensor = 0; tensor < 2; ++tensor) {
            CHECK_CUDA(cudaMemcpyAsync(buffers[tensor], mine[tensor].data(), kCount * sizeof(float),
                                       cudaMemcpyHostToDevice, nullptr));
            CHECK_NCCL(ncclAllReduce(buffers[tensor], buffers[tensor], kCount, ncclFloat32, ncclSum,
                                     comm, nullptr));
            CHECK_CUDA(cudaMemcpy(result.data(), buffers[tensor], kCount * sizeof(float),
                                  cudaMemcpyDeviceToHost));
            for (size_t i = 0; i < kCount; ++i) {
                sums[tensor][i] += static_cast<double>(result[i]);
            }
        }
        if (step == steps / 4 || step == steps / 2 || step == steps) {
            double error = 0;
            for (int tensor = 0; tensor < 2; ++tensor) {
                for (size_t i = 0; i < kCount; ++i) {
                    error = std::max(error, std::fabs(sums[tensor][i] - step * exact[tensor][i]));
                }
            }
            std::printf(" %.4f", error / ranks);
        }
    }
    std::printf("\n");
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
