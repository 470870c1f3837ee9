// Calls that grow from step to step, and hosts and streams that are ahead of others, so that a call
// that waited on the host would hang, or be counted. Twice:
// 1. Rank 0's stream waits for a message that rank 1 sends on another stream behind all its calls
// of
//    two steps.
// 2. Rank 0's host makes the calls of a step once rank 1's host has made those of three steps
// before
//    and they have ended; rank 1's makes those of a step once rank 0's has made those two steps on.
// Every other step puts its collectives into a group. Prints a hash of what all ranks get alike.
#include <algorithm>
#include <cmath>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace {

using slimwire::test::await;
using slimwire::test::publish;

constexpr size_t kSizes[] = {18000, 40000, 270000};  // elements a rank
constexpr size_t kLargest = kSizes[2];
constexpr int kSteps = 6;  // each time; from step to step the sizes grow

struct Job {
    int rank = slimwire::test::launcher_rank(), ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = nullptr, other = nullptr;
    cudaStream_t stream = nullptr, beside = nullptr;
    float *given = nullptr, *sums = nullptr, *gathered = nullptr, *mine = nullptr;
    int steps = 0;
};

void collectives(const Job& job, size_t count) {
    CHECK_NCCL(
        ncclAllReduce(job.given, job.sums, count, ncclFloat32, ncclSum, job.comm, job.stream));
    CHECK_NCCL(
        ncclReduceScatter(job.given, job.mine, count, ncclFloat32, ncclSum, job.comm, job.stream));
    CHECK_NCCL(ncclAllGather(job.given, job.gathered, count, ncclFloat32, job.comm, job.stream));
}

void messages(const Job& job, size_t count) {
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(
        ncclSend(job.given, count, ncclFloat32, (job.rank + 1) % job.ranks, job.comm, job.stream));
    CHECK_NCCL(ncclRecv(job.mine, count, ncclFloat32, (job.rank + job.ranks - 1) % job.ranks,
                        job.comm, job.stream));
    CHECK_NCCL(ncclGroupEnd());
}

void step(Job* job, int number) {
    EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(++job->steps)) == SLIMWIRE_OK, "%s",
                slimwire_last_error());
    for (const size_t count : {kSizes[0], kSizes[std::min(number / 2, 2)]}) {
        const bool grouped = number % 2 != 0;
        if (grouped) {
            CHECK_NCCL(ncclGroupStart());
        }
        collectives(*job, count);
        if (grouped) {
            CHECK_NCCL(ncclGroupEnd());
        }
        messages(*job, count);
    }
}

uint64_t hash_of(const float* device, size_t count) {
    std::vector<float> values(count);
    CHECK_CUDA(cudaMemcpy(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
    uint64_t hash = 0;
    for (const float value : values) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3ull;
    }
    return hash;
}

void print(const Job& job) {
    std::printf("%016llx %016llx\n", static_cast<unsigned long long>(hash_of(job.sums, kLargest)),
                static_cast<unsigned long long>(
                    hash_of(job.gathered, kLargest * static_cast<size_t>(job.ranks))));
}

void behind_a_receive(Job* job) {
    float* const flag = job->mine + kLargest;
    for (int number = 0; number < kSteps; ++number) {
        if (number % 2 == 0 && job->rank == 0) {
            CHECK_NCCL(ncclRecv(flag, 1, ncclUint8, 1, job->other, job->stream));
        }
        step(job, number);
        if (number % 2 == 1 && job->rank == 1) {
            CHECK_NCCL(ncclSend(flag, 1, ncclUint8, 0, job->other, job->beside));
        }
        if (number % 2 == 1) {
            CHECK_CUDA(cudaDeviceSynchronize());
        }
    }
}

void ahead_of_a_host(Job* job) {
    const auto at = [](const char* what, int number) { return what + std::to_string(number); };
    cudaEvent_t ended[3];
    for (cudaEvent_t& event : ended) {
        CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    for (int number = 0; number < kSteps; ++number) {
        if (number >= 3) {
            CHECK_CUDA(cudaEventSynchronize(ended[number % 3]));
        }
        if (job->rank == 0 && number >= 3) {
            (void)await(at("ended", number - 3));
        } else if (job->rank == 1) {
            (void)await(at("made", std::min(number + 2, kSteps - 1)));
        }
        step(job, number);
        CHECK_CUDA(cudaEventRecord(ended[number % 3], job->stream));
        if (job->rank == 0) {
            publish(at("made", number), "");
        } else if (job->rank == 1) {
            CHECK_CUDA(cudaEventSynchronize(ended[number % 3]));
            publish(at("ended", number), "");
        }
    }
    CHECK_CUDA(cudaDeviceSynchronize());
}

}  // namespace

int main() {
    Job job;
    job.comm = slimwire::test::join_job(job.rank, job.ranks);
    CHECK_NCCL(ncclCommSplit(job.comm, 0, job.rank, &job.other, nullptr));
    for (cudaStream_t* stream : {&job.stream, &job.beside}) {
        CHECK_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    const size_t all = kLargest * static_cast<size_t>(job.ranks);
    for (float** buffer : {&job.given, &job.sums, &job.gathered, &job.mine}) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(buffer), all * sizeof(float)));
    }
    std::vector<float> values(all);
    for (size_t i = 0; i < all; ++i) {
        values[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i) + 1.9 * job.rank));
    }
    CHECK_CUDA(cudaMemcpy(job.given, values.data(), all * sizeof(float), cudaMemcpyHostToDevice));
    behind_a_receive(&job);
    print(job);
    ahead_of_a_host(&job);
    print(job);
    CHECK_NCCL(ncclCommDestroy(job.other));
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
