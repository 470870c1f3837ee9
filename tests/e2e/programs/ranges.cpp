// Steps of four all-reduces of one kind under NVTX ranges, and a smaller one at the end: in
// "forward", twice in "backward" (the second within "backward > layer 3"), and one in none. Says of
// each whether its result is what rounding to few bits gives ("c") or the exact sum ("-"): a line
// with the first step of each run of steps that are alike. Ranks print the same if they agreed on
// every call, or do not come to the end.
//   ranges WAY STEPS
// marked: the program tells where steps begin; found: it does not; the others as marked, and
// apart: the last rank has no "layer 3"; grouped: on odd ranks all but the first sum are in one
// group; dropped: step 3 begins with a group that fails; moved: from the middle on "forward" and
// "backward" change places; wandering: the first sum is in "backward" in every other step, else in
// none; captured: from step 6 on each step is captured and replayed once.
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/exact_input.h"
#include "tests/support/nccl_program.h"
#include "tests/support/nvtx_module.h"

namespace {

using Nvtx = slimwire::test::NvtxModule<>;

constexpr size_t kCount = 3000;
constexpr int kSums = 4;

struct Job {
    std::string way;
    int rank = 0, ranks = 0, steps = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* buffers[kSums] = {};
    float* other = nullptr;
    slimwire::test::ExactInput input;
};

void sum(const Job& job, int which) {
    CHECK_NCCL(ncclAllReduce(job.buffers[which], job.buffers[which], kCount, ncclFloat32, ncclSum,
                             job.comm, job.stream));
}

void sums(const Job& job, int number) {
    const bool swapped = job.way == "moved" && number > job.steps / 2;
    const bool grouped = job.way == "grouped" && job.rank % 2 == 1;
    const bool named = job.way != "wandering" || number % 2 == 0;
    if (named) {
        Nvtx::push(swapped || job.way == "wandering" ? "backward" : "forward");
    }
    sum(job, 0);
    if (named) {
        Nvtx::pop();
    }
    if (grouped) {
        CHECK_NCCL(ncclGroupStart());
    }
    Nvtx::push(swapped ? "forward" : "backward");
    sum(job, 1);
    const bool inner = job.way != "apart" || job.rank + 1 < job.ranks;
    if (inner) {
        Nvtx::push("layer 3");
    }
    sum(job, 2);
    if (inner) {
        Nvtx::pop();
    }
    Nvtx::pop();
    sum(job, 3);
    CHECK_NCCL(ncclAllReduce(job.other, job.other, kCount / 3, ncclFloat32, ncclSum, job.comm,
                             job.stream));
    if (grouped) {
        CHECK_NCCL(ncclGroupEnd());
    }
}

// On all ranks alike: NCCL never sees the calls of a group one of which it refuses.
void failed_group(const Job& job) {
    CHECK_NCCL(ncclGroupStart());
    sum(job, 0);
    (void)ncclAllReduce(nullptr, nullptr, kCount, ncclFloat32, ncclSum, job.comm, job.stream);
    EXPECT_THAT(ncclGroupEnd() != ncclSuccess, "the group succeeds");
}

void put(const Job& job) {
    for (float* buffer : job.buffers) {
        CHECK_CUDA(cudaMemcpyAsync(buffer, job.input.given.data(), kCount * sizeof(float),
                                   cudaMemcpyHostToDevice, job.stream));
    }
}

std::string step(const Job& job, int number) {
    if (job.way != "found") {
        EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) == SLIMWIRE_OK, "%s",
                    slimwire_last_error());
    }
    put(job);
    if (job.way == "dropped" && number == 3) {
        failed_group(job);
    }
    if (job.way == "captured" && number >= 6) {
        CHECK_CUDA(cudaStreamSynchronize(job.stream));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t runnable = nullptr;
        CHECK_CUDA(cudaStreamBeginCapture(job.stream, cudaStreamCaptureModeThreadLocal));
        sums(job, number);
        CHECK_CUDA(cudaStreamEndCapture(job.stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
        CHECK_CUDA(cudaGraphLaunch(runnable, job.stream));
        CHECK_CUDA(cudaStreamSynchronize(job.stream));
        CHECK_CUDA(cudaGraphExecDestroy(runnable));
        CHECK_CUDA(cudaGraphDestroy(graph));
    } else {
        sums(job, number);
    }
    std::string out;
    for (float* buffer : job.buffers) {
        std::vector<float> got(kCount);
        CHECK_CUDA(cudaMemcpyAsync(got.data(), buffer, kCount * sizeof(float),
                                   cudaMemcpyDeviceToHost, job.stream));
        CHECK_CUDA(cudaStreamSynchronize(job.stream));
        out += got == job.input.sum ? '-' : 'c';
    }
    return out;
}

}  // namespace

int main(int, char** argv) {
    Job job;
    job.way = argv[1];
    job.steps = std::atoi(argv[2]);
    job.rank = slimwire::test::launcher_rank();
    job.ranks = slimwire::test::launcher_ranks();
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(job.rank);
    CHECK_NCCL(ncclCommInitRank(&job.comm, job.ranks, id, job.rank));
    CHECK_CUDA(cudaStreamCreate(&job.stream));
    for (float*& buffer : job.buffers) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    }
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.other), kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(job.other, 0, kCount * sizeof(float)));
    job.input = slimwire::test::exact_input(kCount, job.rank, job.ranks);
    std::string before;
    for (int number = 1; number <= job.steps; ++number) {
        const std::string now = step(job, number);
        if (now != before) {
            std::printf("step %d: %s\n", number, now.c_str());
            before = now;
        }
    }
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
