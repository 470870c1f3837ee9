// A training step of three all-reduces of one kind, a message of the same count in between, and one
// all-reduce of another kind, again and again. Says of each of the three whether its result is what
// rounding to few bits gives ("c") or the exact sum ("-"): a line with the first step of each run
// of steps that are alike. Ranks print the same if they agreed on every call, or do not come to the
// end.
//   ordinals marked|found|graph STEPS
// marked: the program tells where steps begin; found: it does not; graph: as marked, and the last
// step is captured and replayed. After a third of the steps come two of an evaluation; after two
// thirds a call of the first kind comes once more.
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/exact_input.h"
#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 3000;

struct Job {
    int rank = 0, ranks = 0;
    bool marks = false;
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

void sum(const Job& job, size_t count) {
    CHECK_NCCL(
        ncclAllReduce(job.buffer, job.buffer, count, ncclFloat32, ncclSum, job.comm, job.stream));
}

char result(const Job& job) {
    std::vector<float> got(kCount);
    CHECK_CUDA(cudaMemcpyAsync(got.data(), job.buffer, kCount * sizeof(float),
                               cudaMemcpyDeviceToHost, job.stream));
    CHECK_CUDA(cudaStreamSynchronize(job.stream));
    return got == job.input.sum ? '-' : 'c';
}

char one_sum(const Job& job) {
    put(job);
    sum(job, kCount);
    return result(job);
}

std::string step(const Job& job, int number) {
    if (job.marks) {
        EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) == SLIMWIRE_OK, "%s",
                    slimwire_last_error());
    }
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
    job.marks = way != "found";
    job.comm = slimwire::test::join_job(job.rank, job.ranks);
    CHECK_CUDA(cudaStreamCreate(&job.stream));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.buffer), kCount * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.sent), kCount * sizeof(float)));
    job.input = slimwire::test::exact_input(kCount, job.rank, job.ranks);
    std::string before;
    for (int number = 1; number <= steps; ++number) {
        std::string now = step(job, number);
        if (number == steps / 3) {
            for (int i = 0; i < 2; ++i) {
                sum(job, 77);
                now += one_sum(job);
            }
        }
        if (number == 2 * steps / 3) {
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
