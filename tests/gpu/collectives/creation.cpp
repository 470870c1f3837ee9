// What making communicators costs, in time and in device memory: by turns through NCCL's profiling
// twin, which nobody intercepts, and through whoever stands before NCCL. Usage: creation ROUNDS
// MIB. Rank 0 prints one JSON line: microseconds (its own, medians; of the first apart, which may
// load kernels) and bytes that all ranks of the device hold more after a step than before. MIB: of
// the all-reduce on the last communicator. Ends as nccl_program.h says.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <vector>

#include "tests/support/nccl_program.h"
#include "tools/cli/common/median.h"

namespace {

using slimwire::cli::median;
using slimwire::test::barrier;

struct Job {
    int rank = 0, ranks = 0;
    int places = 0;         // where the ranks met
    void* small = nullptr;  // device memory of 64 bytes

    void meet() { barrier("place" + std::to_string(places++), rank, ranks); }

    // All ranks' devices are one.
    int64_t used_bytes() {
        CHECK_CUDA(cudaDeviceSynchronize());
        meet();
        size_t free = 0, total = 0;
        CHECK_CUDA(cudaMemGetInfo(&free, &total));
        meet();
        return static_cast<int64_t>(total - free);
    }
};

struct Made {
    ncclComm_t comm = nullptr, half = nullptr;
    double init_us = 0, split_us = 0;
    double ready_us = 0;  // with a first small call, at which NCCL connects ranks
};

double us_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
}

Made make(Job* job, bool native) {
    ncclUniqueId id;
    const std::string name = "id" + std::to_string(job->places);
    if (job->rank == 0) {
        CHECK_NCCL((native ? pncclGetUniqueId : ncclGetUniqueId)(&id));
        slimwire::test::publish(name, std::string(id.internal, sizeof(id.internal)));
    } else {
        std::memcpy(id.internal, slimwire::test::await(name).data(), sizeof(id.internal));
    }
    Made made;
    job->meet();
    const auto begin = std::chrono::steady_clock::now();
    CHECK_NCCL(
        (native ? pncclCommInitRank : ncclCommInitRank)(&made.comm, job->ranks, id, job->rank));
    made.init_us = us_since(begin);
    CHECK_NCCL((native ? pncclAllReduce : ncclAllReduce)(job->small, job->small, 16, ncclFloat32,
                                                         ncclSum, made.comm, nullptr));
    CHECK_CUDA(cudaStreamSynchronize(nullptr));
    made.ready_us = us_since(begin);
    job->meet();
    const auto middle = std::chrono::steady_clock::now();
    CHECK_NCCL(
        (native ? pncclCommSplit : ncclCommSplit)(made.comm, 0, job->rank, &made.half, nullptr));
    made.split_us = us_since(middle);
    return made;
}

void end(const Made& made, bool native) {
    for (const ncclComm_t comm : {made.half, made.comm}) {
        CHECK_NCCL((native ? pncclCommDestroy : ncclCommDestroy)(comm));
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc == 3 ? std::atoi(argv[1]) : 0, mib = argc == 3 ? std::atoi(argv[2]) : 0;
    EXPECT_THAT(rounds > 0 && mib > 0, "rounds and MiB, above 0, are asked for");
    Job job{slimwire::test::launcher_rank(), slimwire::test::launcher_ranks()};
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaMalloc(&job.small, 64));
    CHECK_CUDA(cudaMemset(job.small, 0, 64));
    void* buffer = nullptr;
    const size_t bytes = static_cast<size_t>(mib) << 20;
    CHECK_CUDA(cudaMalloc(&buffer, bytes));
    CHECK_CUDA(cudaMemset(buffer, 0, bytes));
    end(make(&job, true), true);  // NCCL's own first time
    int64_t at = job.used_bytes();
    const auto more_bytes = [&] {
        const int64_t before = at;
        at = job.used_bytes();
        return at - before;
    };
    Made made = make(&job, true);
    const int64_t native_bytes = more_bytes();
    end(made, true);
    (void)more_bytes();
    const Made first = make(&job, false);
    const int64_t first_bytes = more_bytes();  // with the process's kernels
    end(first, false);
    (void)more_bytes();
    std::vector<double> inits[2], readies[2], splits[2];
    for (int round = 0; round < rounds; ++round) {
        for (const bool native : {round % 2 == 0, round % 2 == 1}) {
            made = make(&job, native);
            inits[native].push_back(made.init_us);
            readies[native].push_back(made.ready_us);
            splits[native].push_back(made.split_us);
            end(made, native);
        }
    }
    (void)more_bytes();
    made = make(&job, false);
    const int64_t init_bytes = more_bytes();
    const auto begin = std::chrono::steady_clock::now();
    CHECK_NCCL(ncclAllReduce(buffer, buffer, bytes / 4, ncclFloat32, ncclSum, made.comm, nullptr));
    const double call_us = us_since(begin);
    const int64_t call_bytes = more_bytes();
    end(made, false);
    const int64_t ended_bytes = more_bytes();
    CHECK_CUDA(cudaFree(buffer));
    CHECK_CUDA(cudaFree(job.small));
    if (job.rank == 0) {
        std::printf(
            "{\"rounds\":%d,\"ranks\":%d,\"message_mib\":%d,\"native_init_us\":%.0f,\"init_us\":%."
            "0f,"
            "\"first_init_us\":%.0f,\"native_ready_us\":%.0f,\"ready_us\":%.0f,\"native_split_us\":"
            "%.0f,\"split_us\":%.0f,\"first_call_us\":%."
            "0f,"
            "\"native_bytes\":%" PRId64 ",\"first_bytes\":%" PRId64 ",\"bytes\":%" PRId64
            ",\"first_call_bytes\":%" PRId64 ",\"ended_bytes\":%" PRId64 "}\n",
            rounds, job.ranks, mib, median(inits[1]), median(inits[0]), first.init_us,
            median(readies[1]), median(readies[0]), median(splits[1]), median(splits[0]), call_us,
            native_bytes, first_bytes, init_bytes, call_bytes, ended_bytes);
    }
    return 0;
}
