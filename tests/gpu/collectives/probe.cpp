// What the machine is, and whether several ranks may share its device: prints NCCL's version, and
// as a rank of a job makes a communicator and one exact sum. tests/gpu/run asks it before
// anything else. Ends as nccl_program.h says.
#include <vector>

#include "tests/support/nccl_program.h"

int main() {
    int version = 0, devices = 0;
    CHECK_NCCL(ncclGetVersion(&version));
    std::printf("nccl %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    EXPECT_THAT(devices > 0, "no device");
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    constexpr size_t kCount = 100001;
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        values[i] = static_cast<float>(i % 1000) + static_cast<float>(rank);
    }
    void* buffer = nullptr;
    const size_t bytes = kCount * sizeof(float);
    CHECK_CUDA(cudaMalloc(&buffer, bytes));
    CHECK_CUDA(cudaMemcpy(buffer, values.data(), bytes, cudaMemcpyHostToDevice));
    CHECK_NCCL(ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, nullptr));
    CHECK_CUDA(cudaStreamSynchronize(nullptr));
    CHECK_CUDA(cudaMemcpy(values.data(), buffer, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kCount; ++i) {
        const float expected = static_cast<float>(i % 1000) * static_cast<float>(ranks) +
                               static_cast<float>(ranks * (ranks - 1) / 2);
        EXPECT_THAT(values[i] == expected, "element %zu is %g instead of %g", i,
                    static_cast<double>(values[i]), static_cast<double>(expected));
    }
    CHECK_CUDA(cudaFree(buffer));
    CHECK_NCCL(ncclCommDestroy(comm));
    std::printf("ranks %d\n", ranks);
    return 0;
}
