// Prints what the emulator's counters say about known traffic: one all-reduce of a million floats,
// one send of 1000 bytes from rank 0 to rank 1. Checks the ring's byte count. With the argument
// "split", a second communicator does the same all-reduce afterwards.
#include <dlfcn.h>

#include "codecs/base/emulator_abi.h"
#include "tests/support/nccl_program.h"

namespace {

slimwire::EmulatorCounters counters() {
    const auto read = reinterpret_cast<slimwire::EmulatorCountersFunction>(
        dlsym(RTLD_DEFAULT, slimwire::kEmulatorCountersSymbol));
    EXPECT_THAT(read != nullptr, "no counters");
    slimwire::EmulatorCounters now{};
    read(&now);
    return now;
}

}  // namespace

int main(int argc, char**) {
    constexpr size_t kCount = 1'000'000;
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* data = nullptr;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&data), kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(data, 0, kCount * sizeof(float)));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    EXPECT_THAT(counters().payload_bytes_sent == 0, "bytes before any operation");
    CHECK_NCCL(ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    const slimwire::EmulatorCounters reduced = counters();
    const uint64_t expected = 2 * (static_cast<uint64_t>(ranks) - 1) * kCount * sizeof(float) /
                              static_cast<uint64_t>(ranks);
    EXPECT_THAT(
        reduced.payload_bytes_sent == expected && reduced.payload_bytes_received == expected,
        "sent %lu received %lu, expected %lu", reduced.payload_bytes_sent,
        reduced.payload_bytes_received, expected);
    if (rank == 0) {
        CHECK_NCCL(ncclSend(data, 250, ncclFloat32, 1, comm, stream));
    } else if (rank == 1) {
        CHECK_NCCL(ncclRecv(data, 250, ncclFloat32, 0, comm, stream));
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    const slimwire::EmulatorCounters all = counters();
    EXPECT_THAT(all.payload_bytes_sent == expected + (rank == 0 ? 1000 : 0), "send");
    EXPECT_THAT(all.payload_bytes_received == expected + (rank == 1 ? 1000 : 0), "receive");
    std::printf("sent %lu inter_node %lu messages %lu\n", all.payload_bytes_sent,
                all.inter_node_bytes_sent, all.messages_sent);
    if (argc > 1) {
        ncclComm_t part = nullptr;
        CHECK_NCCL(ncclCommSplit(comm, 0, rank, &part, nullptr));
        CHECK_NCCL(ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, part, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
        CHECK_NCCL(ncclCommDestroy(part));
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
