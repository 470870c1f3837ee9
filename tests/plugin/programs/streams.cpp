// All-reduces on the null stream by each of its names, on the per-thread stream, and ordered by the
// null stream's implicit waits alone; never a host wait between copy, call and copy.
#include <cmath>
#include <vector>

#include "tests/support/nccl_program.h"

int main() {
    constexpr size_t kCount = 40000;
    constexpr int kRounds = 25;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    cudaStream_t blocking = nullptr;
    CHECK_CUDA(cudaStreamCreate(&blocking));
    float* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    struct Order {
        const char* name;
        cudaStream_t copy, call;
    };
    const Order orders[] = {
        {"null", nullptr, nullptr},
        {"legacy", cudaStreamLegacy, cudaStreamLegacy},
        {"per thread", cudaStreamPerThread, cudaStreamPerThread},
        {"copies blocking, call null", blocking, nullptr},
        {"copies null, call blocking", nullptr, blocking},
        {"copies per thread, call legacy", cudaStreamPerThread, cudaStreamLegacy}};
    std::vector<float> values(kCount), sums(kCount);
    for (int round = 0; round < kRounds; ++round) {
        for (const Order& order : orders) {
            values.assign(kCount, static_cast<float>(round + 1));
            CHECK_CUDA(cudaMemcpyAsync(buffer, values.data(), kCount * sizeof(float),
                                       cudaMemcpyHostToDevice, order.copy));
            CHECK_NCCL(
                ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, order.call));
            CHECK_CUDA(cudaMemcpyAsync(sums.data(), buffer, kCount * sizeof(float),
                                       cudaMemcpyDeviceToHost, order.copy));
            CHECK_CUDA(cudaStreamSynchronize(order.copy));
            const auto expected = static_cast<float>(ranks * (round + 1));
            for (const float sum : sums) {
                EXPECT_THAT(std::fabs(sum - expected) <= expected * 0.05f,
                            "%s, round %d: %g, expected %g", order.name, round,
                            static_cast<double>(sum), static_cast<double>(expected));
            }
        }
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    CHECK_CUDA(cudaStreamDestroy(blocking));
    return 0;
}
