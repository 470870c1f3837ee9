// A process that makes the unique id, forks the ranks and, given "too", is rank 0 itself; nobody
// touched CUDA before. Sums on two devices, which compression rounds. Prints "rounded" or "exact"
// of each rank.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 30000;

float value_of(size_t i, int rank) {
    return std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank));
}

int run_rank(int rank, const ncclUniqueId& id) {
    CHECK_CUDA(cudaSetDevice(rank));
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    float* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    std::vector<float> host(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        host[i] = value_of(i, rank);
    }
    CHECK_CUDA(cudaMemcpy(buffer, host.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, nullptr));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(host.data(), buffer, kCount * sizeof(float), cudaMemcpyDeviceToHost));
    bool exact = true;
    for (size_t i = 0; i < kCount; ++i) {
        const float off = std::fabs(host[i] - value_of(i, 0) - value_of(i, 1));
        EXPECT_THAT(off < 0.05f, "element %zu is off by %g", i, static_cast<double>(off));
        exact = exact && off < 1e-5f;
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    std::puts(exact ? "exact" : "rounded");
    std::fflush(stdout);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const bool too = argc > 1 && std::strcmp(argv[1], "too") == 0;
    ncclUniqueId id;
    CHECK_NCCL(ncclGetUniqueId(&id));
    std::vector<pid_t> children;
    for (int rank = too ? 1 : 0; rank < 2; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
            std::exit(run_rank(rank, id));
        }
        children.push_back(child);
    }
    bool well = !too || run_rank(0, id) == 0;
    for (const pid_t child : children) {
        int status = 1;
        waitpid(child, &status, 0);
        well = well && status == 0;
    }
    return well ? 0 : 1;
}
