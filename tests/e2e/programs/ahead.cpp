// Calls that grow from step to step, and hosts and streams that are ahead of others, so that a call
// that waited on the host would hang, or be counted. Twice:
// 1. Rank 0's stream waits for a message that rank 1 sends on another stream behind all its calls
// of
//    two steps.
// 2. Rank 0's host makes the calls of a step once rank 1's host has made those of three steps
// before
//    and they have ended; rank 1's makes those of a step once rank 0's has made those two steps on.
// Every other step puts its collectives into a group.
// With arguments FROM and TO it makes steps FROM to TO - 1 of a job that marks none and gathers its
// parameters in each, of which two are behind a receive as in 1 where FROM is not 0. Prints a hash
// of what all ranks get alike; no result may be off by more than twice its own norm.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/e2e/programs/room_of_ring.h"
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
    float* received = nullptr;
    uint16_t *given16 = nullptr, *sums16 = nullptr, *gathered16 = nullptr;  // bf16
    int steps = 0;
};

void collectives(const Job& job, size_t count) {
    CHECK_NCCL(
        ncclAllReduce(job.given, job.sums, count, ncclFloat32, ncclSum, job.comm, job.stream));
    CHECK_NCCL(
        ncclReduceScatter(job.given, job.mine, count, ncclFloat32, ncclSum, job.comm, job.stream));
    CHECK_NCCL(ncclAllGather(job.given, job.gathered, count, ncclFloat32, job.comm, job.stream));
    CHECK_NCCL(
        ncclAllReduce(job.given16, job.sums16, count, ncclBfloat16, ncclSum, job.comm, job.stream));
    CHECK_NCCL(
        ncclAllGather(job.given16, job.gathered16, count, ncclBfloat16, job.comm, job.stream));
}

void messages(const Job& job, size_t count) {
    CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(
        ncclSend(job.given, count, ncclFloat32, (job.rank + 1) % job.ranks, job.comm, job.stream));
    CHECK_NCCL(ncclRecv(job.received, count, ncclFloat32, (job.rank + job.ranks - 1) % job.ranks,
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

// Once may fail (policies_test.cpp).
template <class Make>
void made(const Make& make) {
    if (make() != cudaSuccess) {
        (void)cudaGetLastError();
        CHECK_CUDA(make());
    }
}

float value(int rank, size_t i) {
    return std::sin(0.37f * static_cast<float>(i) + 0.6f * static_cast<float>(rank));
}

float number_of(float value) {
    return value;
}
float number_of(uint16_t bf16) {
    const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// What `device` holds, which must be near `exact`; a hash of its bits.
template <class T, class Exact>
uint64_t check(const char* what, const T* device, size_t count, const Exact& exact) {
    std::vector<T> values(count);
    CHECK_CUDA(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    uint64_t hash = 0;
    double off = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, &values[i], sizeof(T));
        hash = (hash ^ bits) * 0x100000001b3ull;
        const double wanted = exact(i), error = static_cast<double>(number_of(values[i])) - wanted;
        off += error * error;
        norm += wanted * wanted;
    }
    EXPECT_THAT(off <= 4 * norm, "%s: off by %g times its norm", what, std::sqrt(off / norm));
    return hash;
}

void print(const Job& job) {
    const auto ranks = static_cast<size_t>(job.ranks);
    const auto sum = [&](size_t i) {
        double sum = 0;
        for (int rank = 0; rank < job.ranks; ++rank) {
            sum += static_cast<double>(value(rank, i));
        }
        return sum;
    };
    const auto gathered = [&](size_t i) {
        return static_cast<double>(value(static_cast<int>(i / kLargest), i % kLargest));
    };
    const uint64_t hashes[] = {
        check("all-reduce", job.sums, kLargest, sum),
        check("all-gather", job.gathered, ranks * kLargest, gathered),
        check("all-reduce of bf16", job.sums16, kLargest, sum),
        check("all-gather of bf16", job.gathered16, ranks * kLargest, gathered)};
    for (const uint64_t hash : hashes) {
        std::printf("%016llx ", static_cast<unsigned long long>(hash));
    }
    std::printf("\n");
    const auto block = static_cast<size_t>(job.rank) * kLargest;
    const int before = (job.rank + job.ranks - 1) % job.ranks;
    (void)check("reduce-scatter", job.mine, kLargest, [&](size_t i) { return sum(block + i); });
    (void)check("message", job.received, kLargest,
                [&](size_t i) { return static_cast<double>(value(before, i)); });
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
        made([&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming); });
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

void gathering(const Job& job, int from, int to) {
    float* const flag = job.mine + kLargest;
    for (int number = from; number < to; ++number) {
        if (number == from && from > 0 && job.rank == 0) {
            CHECK_NCCL(ncclRecv(flag, 1, ncclUint8, 1, job.other, job.stream));
        }
        CHECK_NCCL(ncclAllGather(job.given + number, job.gathered, kSizes[0], ncclFloat32, job.comm,
                                 job.stream));
        CHECK_NCCL(ncclReduceScatter(job.given, job.mine, kSizes[2], ncclFloat32, ncclSum, job.comm,
                                     job.stream));
        if (number == from + 1) {
            if (from > 0 && job.rank == 1) {
                CHECK_NCCL(ncclSend(flag, 1, ncclUint8, 0, job.other, job.beside));
            }
            CHECK_CUDA(cudaDeviceSynchronize());
        } else if (from == 0) {
            CHECK_CUDA(cudaDeviceSynchronize());
        }
        if (from == 0 && number == 11) {
            slimwire::test::await_room_of_ring();
        }
    }
    CHECK_CUDA(cudaDeviceSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
    Job job;
    job.comm = slimwire::test::join_job(job.rank, job.ranks);
    CHECK_NCCL(ncclCommSplit(job.comm, 0, job.rank, &job.other, nullptr));
    for (cudaStream_t* stream : {&job.stream, &job.beside}) {
        made([&] { return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking); });
    }
    const size_t all = kLargest * static_cast<size_t>(job.ranks);
    for (float** buffer : {&job.given, &job.sums, &job.gathered, &job.mine, &job.received}) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(buffer), all * sizeof(float)));
    }
    for (uint16_t** buffer : {&job.given16, &job.sums16, &job.gathered16}) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(buffer), all * sizeof(uint16_t)));
    }
    std::vector<float> values(all);
    std::vector<uint16_t> values16(all);
    for (size_t i = 0; i < all; ++i) {
        values[i] = value(job.rank, i);
        uint32_t bits = 0;
        std::memcpy(&bits, &values[i], sizeof bits);
        values16[i] = static_cast<uint16_t>(bits >> 16);
    }
    CHECK_CUDA(cudaMemcpy(job.given, values.data(), all * sizeof(float), cudaMemcpyHostToDevice));
    CHECK_CUDA(
        cudaMemcpy(job.given16, values16.data(), all * sizeof(uint16_t), cudaMemcpyHostToDevice));
    if (argc > 2) {
        gathering(job, std::atoi(argv[1]), std::atoi(argv[2]));
    } else {
        behind_a_receive(&job);
        print(job);
        ahead_of_a_host(&job);
        print(job);
    }
    CHECK_NCCL(ncclCommDestroy(job.other));
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
