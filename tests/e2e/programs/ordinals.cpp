// A training step of three all-reduces of one kind, a message of the same count in between, and one
// all-reduce of another kind, again and again. Says of each of the three whether its result is what
// rounding to few bits gives ("c") or the exact sum ("-"): a line with the first step of each run
// of steps that are alike. Ranks print the same if they agreed on every call, or do not come to the
// end.
//   ordinals marked|found|graph STEPS
// marked: the program tells where steps begin; found: it does not; graph: as marked, and the last
// step is captured and replayed. After a third of the steps come two of an evaluation; after two
// thirds a call of the first kind comes once more.
//   ordinals skips-marked|skips-found|skips-grouped|skips-lengths STEPS
// Training that skips steps: three sums of gradients, the flag of an overflow (an all-reduce of one
// number by its maximum: 1 in steps 3 and 5), and the norm of all gradients. grouped: as marked,
// each call in a group of its own; lengths: the maximum is no flag but a length.
#include <algorithm>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/exact_input.h"
#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 3000;

struct Job {
    int rank = 0, ranks = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* buffer = nullptr;
    float* sent = nullptr;
    slimwire::test::ExactInput input;
};

void put(const Job& job) {
    CHECK_CUDA(cudaMemcpyAsync(job.buffer, job.input.given.data(), kCount * sizeof(float),
                               cudaMemcpyHostToDevice, job.stream));
}

void sum(const Job& job, size_t count, ncclRedOp_t op = ncclSum) {
    CHECK_NCCL(ncclAllReduce(job.buffer, job.buffer, count, ncclFloat32, op, job.comm, job.stream));
}

char result(const Job& job, size_t count = kCount) {
    std::vector<float> got(count);
    CHECK_CUDA(cudaMemcpyAsync(got.data(), job.buffer, count * sizeof(float),
                               cudaMemcpyDeviceToHost, job.stream));
    CHECK_CUDA(cudaStreamSynchronize(job.stream));
    return std::equal(got.begin(), got.end(), job.input.sum.begin()) ? '-' : 'c';
}

char one_sum(const Job& job) {
    put(job);
    sum(job, kCount);
    return result(job);
}

std::string skipping_step(const Job& job, int number, const std::string& way) {
    const auto reduce = [&](size_t count, ncclRedOp_t op) {
        if (way == "skips-grouped") {
            CHECK_NCCL(ncclGroupStart());
        }
        sum(job, count, op);
        if (way == "skips-grouped") {
            CHECK_NCCL(ncclGroupEnd());
        }
    };
    std::string out;
    for (const size_t count : {kCount, kCount - 100, kCount - 200}) {
        put(job);
        reduce(count, ncclSum);
        out += result(job, count);
    }
    const bool overflow = job.rank == job.ranks - 1 && (number == 3 || number == 5);
    const float flag = way == "skips-lengths" ? 100.0f + static_cast<float>(job.rank)
                       : overflow             ? 1.0f
                                              : 0.0f;
    CHECK_CUDA(cudaMemcpyAsync(job.buffer, &flag, sizeof flag, cudaMemcpyHostToDevice, job.stream));
    reduce(1, ncclMax);
    CHECK_CUDA(cudaStreamSynchronize(job.stream));
    reduce(1, ncclSum);
    return out;
}

std::string step(const Job& job) {
    std::string out;
    out += one_sum(job);
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclSend(job.buffer, kCount, ncclFloat32, (job.rank + 1) % job.ranks, job.comm,
                        job.stream));
    CHECK_NCCL(ncclRecv(job.sent, kCount, ncclFloat32, (job.rank + job.ranks - 1) % job.ranks,
                        job.comm, job.stream));
    CHECK_NCCL(ncclGroupEnd());
    out += one_sum(job);
    sum(job, kCount / 3);
    out += one_sum(job);
    return out;
}

void replay(const Job& job, int number) {
    CHECK_CUDA(cudaStreamSynchronize(job.stream));
    EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) == SLIMWIRE_OK, "no step");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    std::string out;
    for (int call = 0; call < 3; ++call) {
        CHECK_CUDA(cudaStreamBeginCapture(job.stream, cudaStreamCaptureModeGlobal));
        sum(job, kCount);
        CHECK_CUDA(cudaStreamEndCapture(job.stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
        for (int time = 0; time < 2; ++time) {
            put(job);
            CHECK_CUDA(cudaGraphLaunch(runnable, job.stream));
            out += result(job);
        }
        CHECK_CUDA(cudaGraphExecDestroy(runnable));
        CHECK_CUDA(cudaGraphDestroy(graph));
    }
    std::printf("replays: %s\n", out.c_str());
}

}  // namespace

int main(int, char** argv) {
    const std::string way = argv[1];
    const int steps = std::atoi(argv[2]);
    Job job;
    job.rank = slimwire::test::launcher_rank();
    job.ranks = slimwire::test::launcher_ranks();
    const bool marks = !way.ends_with("found"), skips = way.starts_with("skips");
    job.comm = slimwire::test::join_job(job.rank, job.ranks);
    CHECK_CUDA(cudaStreamCreate(&job.stream));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.buffer), kCount * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.sent), kCount * sizeof(float)));
    job.input = slimwire::test::exact_input(kCount, job.rank, job.ranks);
    std::string before;
    for (int number = 1; number <= steps; ++number) {
        if (marks) {
            EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) == SLIMWIRE_OK, "%s",
                        slimwire_last_error());
        }
        std::string now = skips ? skipping_step(job, number, way) : step(job);
        if (!skips && number == steps / 3) {
            for (int i = 0; i < 2; ++i) {
                sum(job, 77);
                now += one_sum(job);
            }
        }
        if (!skips && number == 2 * steps / 3) {
            now += one_sum(job);
        }
        if (now != before) {
            std::printf("step %d: %s\n", number, now.c_str());
            before = now;
        }
    }
    if (way == "graph") {
        replay(job, steps + 1);
    }
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
