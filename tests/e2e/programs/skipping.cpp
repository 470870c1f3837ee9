// Training that skips steps: three sums of gradients, the flag of an overflow (an all-reduce of one
// number by its maximum: 1 in steps 3 and 5), and the norm of all gradients. Prints which of the
// sums were compressed ("c") or exact ("-"): a line with the first step of each run of steps alike.
//   skipping marked|found|grouped|lengths STEPS
// marked: the program tells where steps begin; grouped: the same, each call in a group of its own;
// lengths: the maximum is no flag but a length; found: the program tells nothing.
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/exact_input.h"
#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCounts[] = {6000, 5000, 4100};

ncclResult_t reduce(float* buffer, size_t count, ncclRedOp_t op, ncclComm_t comm, bool grouped) {
    if (grouped) {
        CHECK_NCCL(ncclGroupStart());
    }
    const ncclResult_t result =
        ncclAllReduce(buffer, buffer, count, ncclFloat32, op, comm, nullptr);
    return grouped ? ncclGroupEnd() : result;
}

}  // namespace

int main(int, char** argv) {
    const std::string way = argv[1];
    const int steps = std::atoi(argv[2]);
    const int rank = slimwire::test::launcher_rank(), ranks = slimwire::test::launcher_ranks();
    const bool grouped = way == "grouped";
    ncclComm_t comm = slimwire::test::join_job(rank, ranks);
    float* buffer = nullptr;
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCounts[0] * sizeof(float)));
    const auto [given, exact] = slimwire::test::exact_input(kCounts[0], rank, ranks);
    std::string before;
    for (int step = 1; step <= steps; ++step) {
        if (way != "found") {
            EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(step)) == SLIMWIRE_OK, "%s",
                        slimwire_last_error());
        }
        std::string now;
        for (const size_t count : kCounts) {
            std::vector<float> got(count);
            CHECK_CUDA(
                cudaMemcpy(buffer, given.data(), count * sizeof(float), cudaMemcpyHostToDevice));
            CHECK_NCCL(reduce(buffer, count, ncclSum, comm, grouped));
            CHECK_CUDA(
                cudaMemcpy(got.data(), buffer, count * sizeof(float), cudaMemcpyDeviceToHost));
            now += std::equal(got.begin(), got.end(), exact.begin()) ? '-' : 'c';
        }
        const bool overflow = rank == ranks - 1 && (step == 3 || step == 5);
        float flag = way == "lengths" ? 100.0f + static_cast<float>(rank) : overflow ? 1.0f : 0.0f;
        CHECK_CUDA(cudaMemcpy(buffer, &flag, sizeof flag, cudaMemcpyHostToDevice));
        CHECK_NCCL(reduce(buffer, 1, ncclMax, comm, grouped));
        CHECK_CUDA(cudaMemcpy(&flag, buffer, sizeof flag, cudaMemcpyDeviceToHost));
        CHECK_NCCL(reduce(buffer, 1, ncclSum, comm, grouped));
        if (now != before) {
            std::printf("step %d: %s\n", step, now.c_str());
            before = now;
        }
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
