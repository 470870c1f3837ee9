// Two ranks: one sends in the group of an all-reduce, the other receives in a call of its own after
// the all-reduce, as NCCL allows: of a group it runs a communicator's collectives first. Prints
// "done".
#include <vector>

#include "tests/support/nccl_program.h"

int main() {
    constexpr size_t kCount = 100000;
    const int rank = slimwire::test::launcher_rank();
    ncclComm_t comm = slimwire::test::join_job(rank, 2);
    cudaStream_t stream = nullptr;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    float* summed = nullptr;
    float* message = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&summed), kCount * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&message), kCount * sizeof(float)));
    const std::vector<float> ones(kCount, 1.0f);
    const size_t bytes = kCount * sizeof(float);
    CHECK_CUDA(cudaMemcpy(summed, ones.data(), bytes, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemset(message, 0, bytes));
    CHECK_CUDA(cudaDeviceSynchronize());
    if (rank == 0) {
        CHECK_CUDA(cudaMemcpy(message, ones.data(), bytes, cudaMemcpyHostToDevice));
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclSend(message, kCount, ncclFloat32, 1, comm, stream));
        CHECK_NCCL(ncclAllReduce(summed, summed, kCount, ncclFloat32, ncclSum, comm, stream));
        CHECK_NCCL(ncclGroupEnd());
    } else {
        CHECK_NCCL(ncclAllReduce(summed, summed, kCount, ncclFloat32, ncclSum, comm, stream));
        CHECK_NCCL(ncclRecv(message, kCount, ncclFloat32, 0, comm, stream));
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    std::vector<float> host(kCount);
    for (const auto& [from, value] : {std::pair{summed, 2.0f}, std::pair{message, 1.0f}}) {
        CHECK_CUDA(cudaMemcpy(host.data(), from, bytes, cudaMemcpyDeviceToHost));
        for (const float element : host) {
            EXPECT_THAT(element > 0.98f * value && element < 1.02f * value, "%g",
                        static_cast<double>(element));
        }
    }
    std::puts("done");
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
