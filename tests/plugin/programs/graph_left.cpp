// Two devices of one thread. Their graphs end while the call of one device waits for the other's:
// the other's must not wait for the first device, or both wait for ever. And memory that graphs
// leave is used again, and given back when the communicators end.

#include "tests/support/nccl_program.h"

namespace {

constexpr int kDevices = 2;
constexpr size_t kCount = 300000;

struct Rank {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* buffer = nullptr;
};

void all_reduce(const Rank& rank) {
    CHECK_NCCL(ncclAllReduce(rank.buffer, rank.buffer, kCount, ncclFloat32, ncclSum, rank.comm,
                             rank.stream));
}

void all_reduce_together(const Rank* ranks) {
    CHECK_NCCL(ncclGroupStart());
    for (int device = 0; device < kDevices; ++device) {
        all_reduce(ranks[device]);
    }
    CHECK_NCCL(ncclGroupEnd());
}

void synchronize(const Rank* ranks) {
    for (int device = 0; device < kDevices; ++device) {
        CHECK_CUDA(cudaSetDevice(device));
        CHECK_CUDA(cudaStreamSynchronize(ranks[device].stream));
    }
}

void capture(const Rank* ranks, cudaGraph_t* graphs) {
    for (int device = 0; device < kDevices; ++device) {
        CHECK_CUDA(cudaStreamBeginCapture(ranks[device].stream, cudaStreamCaptureModeThreadLocal));
    }
    all_reduce_together(ranks);
    for (int device = 0; device < kDevices; ++device) {
        CHECK_CUDA(cudaStreamEndCapture(ranks[device].stream, &graphs[device]));
    }
}

size_t free_bytes() {
    size_t free = 0, total = 0;
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaMemGetInfo(&free, &total));
    return free;
}

}  // namespace

int main() {
    Rank ranks[kDevices];
    ncclComm_t comms[kDevices];
    for (int device = 0; device < kDevices; ++device) {
        CHECK_CUDA(cudaSetDevice(device));
        CHECK_CUDA(cudaStreamCreateWithFlags(&ranks[device].stream, cudaStreamNonBlocking));
        CHECK_CUDA(
            cudaMalloc(reinterpret_cast<void**>(&ranks[device].buffer), kCount * sizeof(float)));
        CHECK_CUDA(cudaMemset(ranks[device].buffer, 0, kCount * sizeof(float)));
        CHECK_CUDA(cudaDeviceSynchronize());
    }
    const size_t at_first = free_bytes();
    CHECK_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
    for (int device = 0; device < kDevices; ++device) {
        ranks[device].comm = comms[device];
    }
    all_reduce_together(ranks);
    synchronize(ranks);

    cudaGraph_t graphs[kDevices];
    size_t after_one = 0;
    for (int round = 0; round < 20; ++round) {
        capture(ranks, graphs);
        all_reduce(ranks[0]);
        for (cudaGraph_t graph : graphs) {
            CHECK_CUDA(cudaGraphDestroy(graph));
        }
        all_reduce(ranks[1]);
        synchronize(ranks);
        after_one = round == 0 ? free_bytes() : after_one;
    }
    EXPECT_THAT(free_bytes() == after_one, "%zu bytes free after 20 graphs, %zu after one",
                free_bytes(), after_one);
    for (const Rank& rank : ranks) {
        CHECK_NCCL(ncclCommDestroy(rank.comm));
    }
    EXPECT_THAT(free_bytes() == at_first, "%zu bytes free at the end, %zu at first", free_bytes(),
                at_first);
    return 0;
}
