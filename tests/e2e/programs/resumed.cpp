// A job that can be stopped and go on: marks its steps, loads the state that the process before
// saved, and saves its own. Each step sums three tensors of equal facts in one buffer, with values
// that follow from the step alone; prints a hash of every result, so that what several processes
// print one after the other is what one prints. The host is two steps ahead of the device at most.
//   resumed FROM TO LOAD SAVE [late] [told] [staged]
// steps FROM to TO - 1; LOAD and SAVE are paths, "-" for none. late: loads after it made some steps
// of its own. told: under a loss scale that grows every fourth step, which it tells. staged: pairs
// of ranks, copies of each other, send each other the values instead, the second one in answer;
// then the copies sum something.
#include <cmath>
#include <utility>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/e2e/programs/dies_saving.h"
#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kCount = 5000;
constexpr int kTensors = 3;

struct Job {
    int rank = 0;
    bool told = false, staged = false;
    ncclComm_t comm = nullptr, copies = nullptr;
    float* buffer = nullptr;
};

// Enqueues a step, whose results will be at `out`, kTensors of kCount.
void step(const Job& job, int number, float* out) {
    EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) == SLIMWIRE_OK, "%s",
                slimwire_last_error());
    const double scale = job.told ? std::ldexp(1.0, number % 1000 / 4) : 1.0;
    if (job.told) {
        EXPECT_THAT(slimwire_set_loss_scale(scale) == SLIMWIRE_OK, "%s", slimwire_last_error());
    }
    std::vector<float> values(kCount);
    for (int tensor = 0; tensor < kTensors; ++tensor, out += kCount) {
        const auto size = static_cast<float>(scale * std::pow(10.0, tensor));
        const auto phase = static_cast<float>(1.9 * job.rank + 4.1 * tensor + 0.73 * number);
        for (size_t i = 0; i < kCount; ++i) {
            values[i] = size * std::sin(0.37f * static_cast<float>(i) + phase);
        }
        CHECK_CUDA(cudaMemcpyAsync(job.buffer, values.data(), kCount * sizeof(float),
                                   cudaMemcpyHostToDevice, nullptr));
        float* result = job.buffer;
        if (job.staged) {
            result += kCount;
            const int stage = job.rank % 2;
            for (const bool sends : {stage == 0, stage == 1}) {
                CHECK_NCCL(
                    sends ? ncclSend(job.buffer, kCount, ncclFloat32, 1 - stage, job.comm, nullptr)
                          : ncclRecv(result, kCount, ncclFloat32, 1 - stage, job.comm, nullptr));
            }
        } else {
            CHECK_NCCL(
                ncclAllReduce(job.buffer, result, kCount, ncclFloat32, ncclSum, job.comm, nullptr));
        }
        CHECK_CUDA(
            cudaMemcpyAsync(out, result, kCount * sizeof(float), cudaMemcpyDeviceToHost, nullptr));
    }
    if (job.staged) {
        CHECK_NCCL(
            ncclAllReduce(job.buffer, job.buffer, 1, ncclFloat32, ncclSum, job.copies, nullptr));
    }
}

void print(int number, const float* results) {
    for (int tensor = 0; tensor < kTensors; ++tensor, results += kCount) {
        uint64_t hash = 0;
        for (size_t i = 0; i < kCount; ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, &results[i], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3ull;
        }
        std::printf("%d %d %016llx\n", number, tensor, static_cast<unsigned long long>(hash));
    }
}

void load(const char* path) {
    if (std::strcmp(path, "-") != 0) {
        if (const int loaded = slimwire_load_state(path); loaded != SLIMWIRE_OK) {
            std::fprintf(stderr, "load %d: %s\n", loaded, slimwire_last_error());
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc >= 5, "FROM TO LOAD SAVE");
    const int from = std::atoi(argv[1]), to = std::atoi(argv[2]);
    bool late = false;
    Job job;
    for (int i = 5; i < argc; ++i) {
        late |= std::strcmp(argv[i], "late") == 0;
        job.told |= std::strcmp(argv[i], "told") == 0;
        job.staged |= std::strcmp(argv[i], "staged") == 0;
    }
    job.rank = slimwire::test::launcher_rank();
    slimwire::test::may_die_saving(job.rank);
    if (!late) {
        load(argv[3]);  // no NCCL call was made yet
    }
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(job.rank);
    CHECK_NCCL(ncclCommInitRank(&job.comm, slimwire::test::launcher_ranks(), id, job.rank));
    if (job.staged) {
        ncclComm_t all = std::exchange(job.comm, nullptr);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        CHECK_NCCL(ncclCommSplit(all, job.rank / 2, job.rank, &job.comm, &config));
        config.commName = "dp";
        CHECK_NCCL(ncclCommSplit(all, job.rank % 2, job.rank, &job.copies, &config));
        CHECK_NCCL(ncclCommDestroy(all));
    }
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.buffer), 2 * kCount * sizeof(float)));
    constexpr size_t kStep = kTensors * kCount;
    float* results = nullptr;  // pinned: nothing waits for them
    CHECK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&results),
                              static_cast<size_t>(to - from + 1) * kStep * sizeof(float)));
    if (late) {
        for (int number = 0; number < 3; ++number) {
            step(job, 1000 + number, results);
        }
        load(argv[3]);
    }
    cudaEvent_t ended[2] = {};
    for (cudaEvent_t& event : ended) {
        CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    for (int number = from; number < to; ++number) {
        CHECK_CUDA(cudaEventSynchronize(ended[number % 2]));
        step(job, number, results + static_cast<size_t>(number - from) * kStep);
        CHECK_CUDA(cudaEventRecord(ended[number % 2], nullptr));
    }
    // While the device is still at work.
    if (std::strcmp(argv[4], "-") != 0) {
        if (const int saved = slimwire_save_state(argv[4]); saved != SLIMWIRE_OK) {
            std::fprintf(stderr, "save %d: %s\n", saved, slimwire_last_error());
        }
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int number = from; number < to; ++number) {
        print(number, results + static_cast<size_t>(number - from) * kStep);
    }
    CHECK_NCCL(ncclCommDestroy(job.comm));
    if (job.staged) {
        CHECK_NCCL(ncclCommDestroy(job.copies));
    }
    return 0;
}
