// Two ranks: one receives a small message and sends a large one in one group; the other receives
// the large one before it sends the small one. Nothing that the group needs, such as room to encode
// in, may wait for the receive. Three rounds, each with a larger message. Prints "done".
#include <vector>

#include "tests/support/nccl_program.h"

int main() {
    constexpr size_t kSmall = 8;
    constexpr size_t kLargest = 400000;
    const int rank = slimwire::test::launcher_rank();
    ncclComm_t comm = slimwire::test::join_job(rank, 2);
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    float* large = nullptr;
    float* small = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&large), kLargest * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&small), kSmall * sizeof(float)));
    std::vector<float> host(kLargest, rank == 0 ? 0.5f : -1.0f);
    CHECK_CUDA(cudaMemcpy(large, host.data(), kLargest * sizeof(float), cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemset(small, 0, kSmall * sizeof(float)));
    for (const size_t count : {kLargest / 100, kLargest / 10, kLargest}) {
        if (rank == 0) {
            CHECK_NCCL(ncclGroupStart());
            CHECK_NCCL(ncclRecv(small, kSmall, ncclFloat32, 1, comm, stream));
            CHECK_NCCL(ncclSend(large, count, ncclFloat32, 1, comm, stream));
            CHECK_NCCL(ncclGroupEnd());
        } else {
            CHECK_NCCL(ncclRecv(large, count, ncclFloat32, 0, comm, stream));
            CHECK_NCCL(ncclSend(small, kSmall, ncclFloat32, 0, comm, stream));
        }
        CHECK_CUDA(cudaStreamSynchronize(stream));
    }
    CHECK_CUDA(cudaMemcpy(host.data(), large, kLargest * sizeof(float), cudaMemcpyDeviceToHost));
    for (const float value : host) {
        EXPECT_THAT(value > 0.49f && value < 0.51f, "%g", static_cast<double>(value));
    }
    std::puts("done");
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
