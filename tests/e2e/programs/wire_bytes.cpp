// Makes calls and prints what the emulator's transport sent for them, for this rank: "sent N
// inter M", M of them between nodes; a line for each operation.
// Arguments: operations ("allreduce" when none is named; "sendrecv": from each rank to the next
// one, first all around in groups, then along the chain one by one), each with its counts after it;
// each count once in fp32 and once in fp16. The k-th count's root is rank k.
#include <dlfcn.h>

#include <cinttypes>

#include "codecs/base/emulator_abi.h"
#include "tests/e2e/programs/operations.h"
#include "tests/support/nccl_program.h"

namespace {

// A chain, so that nobody waits in a circle.
void chain(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm) {
    const int rank = slimwire::test::launcher_rank(), ranks = slimwire::test::launcher_ranks();
    if (rank > 0) {
        CHECK_NCCL(ncclRecv(receive, count, type, rank - 1, comm, nullptr));
    }
    if (rank + 1 < ranks) {
        CHECK_NCCL(ncclSend(send, count, type, rank + 1, comm, nullptr));
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    const auto count_bytes = reinterpret_cast<slimwire::EmulatorCountersFunction>(
        dlsym(RTLD_DEFAULT, slimwire::kEmulatorCountersSymbol));
    EXPECT_THAT(count_bytes != nullptr, "not on the emulator");
    const auto mark_step =
        reinterpret_cast<int (*)(uint64_t)>(dlsym(RTLD_DEFAULT, "slimwire_mark_step"));
    constexpr size_t kBytes = size_t{4} << 20;
    const size_t bytes = kBytes * static_cast<size_t>(ranks);
    char *send = nullptr, *receive = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&send), bytes));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&receive), bytes));
    CHECK_CUDA(cudaMemset(send, 0, bytes));
    std::string op = "allreduce";
    for (int i = 1; i < argc;) {
        if (std::atoi(argv[i]) == 0) {
            op = argv[i++];
        }
        slimwire::EmulatorCounters before{}, after{};
        // Where slimwire is there, each operation is a step, so that the places of calls are known.
        if (mark_step != nullptr) {
            EXPECT_THAT(mark_step(static_cast<uint64_t>(i)) == 0, "no step");
        }
        slimwire::test::barrier("before " + std::to_string(i), rank, ranks);
        count_bytes(&before);
        for (int root = 0; i < argc && std::atoi(argv[i]) != 0; ++i, root = (root + 1) % ranks) {
            const auto count = static_cast<size_t>(std::atoi(argv[i]));
            for (const ncclDataType_t type : {ncclFloat32, ncclFloat16}) {
                CHECK_NCCL(slimwire::test::make_call(op, send, receive, count, type, root, comm));
                if (op == "sendrecv") {
                    chain(send, receive, count, type, comm);
                }
            }
        }
        CHECK_CUDA(cudaStreamSynchronize(nullptr));
        slimwire::test::barrier("after " + std::to_string(i), rank, ranks);
        count_bytes(&after);
        std::printf("sent %" PRIu64 " inter %" PRIu64 "\n",
                    after.payload_bytes_sent - before.payload_bytes_sent,
                    after.inter_node_bytes_sent - before.inter_node_bytes_sent);
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
