// Makes all-reduces and prints what the emulator's transport sent for them: "sent N inter M" for
// this rank, M of it between nodes. Arguments: the counts, each once in fp32 and once in fp16.
#include <dlfcn.h>

#include <cinttypes>

#include "codecs/base/emulator_abi.h"
#include "tests/support/nccl_program.h"

int main(int argc, char** argv) {
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    const auto count_bytes = reinterpret_cast<slimwire::EmulatorCountersFunction>(
        dlsym(RTLD_DEFAULT, slimwire::kEmulatorCountersSymbol));
    EXPECT_THAT(count_bytes != nullptr, "not on the emulator");
    float* buffer = nullptr;
    constexpr size_t kBytes = size_t{4} << 20;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kBytes));
    CHECK_CUDA(cudaMemset(buffer, 0, kBytes));
    slimwire::EmulatorCounters before{}, after{};
    slimwire::test::barrier("created", rank, ranks);
    count_bytes(&before);
    for (int i = 1; i < argc; ++i) {
        const auto count = static_cast<size_t>(std::atoi(argv[i]));
        CHECK_NCCL(ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, comm, nullptr));
        CHECK_NCCL(ncclAllReduce(buffer, buffer, count, ncclFloat16, ncclSum, comm, nullptr));
    }
    CHECK_CUDA(cudaStreamSynchronize(nullptr));
    slimwire::test::barrier("reduced", rank, ranks);
    count_bytes(&after);
    std::printf("sent %" PRIu64 " inter %" PRIu64 "\n",
                after.payload_bytes_sent - before.payload_bytes_sent,
                after.inter_node_bytes_sent - before.inter_node_bytes_sent);
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
