// A training job that can be stopped and go on, also on another number of ranks: a bucket that is
// averaged whole, as of DistributedDataParallel, and two units that are gathered, gathered again
// and reduced into shards, as of FSDP. Each rank pulls all parameters to a target of its own.
// Prints, of each step, hashes of what the ranks reduced and gathered; and with `loss` only, at the
// end, the mean square distance of the parameters from the mean target, of bucket and units.
//   checkpointed FROM TO LOAD SAVE AT [loss]
// steps FROM to TO - 1. Before step AT, or at the end where AT is TO, it saves slimwire's state to
// SAVE and the parameters to SAVE.model; "-" for none. LOAD names such files.
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/support/nccl_program.h"

namespace {

constexpr size_t kBucket = 262144 + 1000;    // 1 MiB and more
constexpr size_t kUnits[] = {30000, 70001};  // parameters
constexpr float kRate = 0.125f;

using Values = std::vector<float>;

struct Job {
    int rank = slimwire::test::launcher_rank();
    size_t ranks = static_cast<size_t>(slimwire::test::launcher_ranks());
    ncclComm_t comm = nullptr;
    float *given = nullptr, *got = nullptr;
    Values bucket;  // whole on every rank
    Values shards[2], target;
    bool prints = true;

    [[nodiscard]] size_t shard(int unit) const { return (kUnits[unit] + ranks - 1) / ranks; }
};

float target_of(size_t i, int rank) {
    return std::sin(0.37f * static_cast<float>(i % 4099) + 1.9f * static_cast<float>(rank)) *
           (i % 17 == 0 ? 8.0f : 1.0f);
}

void put(float* to, const Values& values) {
    CHECK_CUDA(
        cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
}
Values from(const float* device, size_t count) {
    Values values(count);
    CHECK_CUDA(cudaMemcpy(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
    return values;
}

void print(const Job& job, int number, const char* what, const Values& values) {
    uint64_t hash = 0;
    for (const float value : values) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3ull;
    }
    if (job.prints) {
        std::printf("%d %s %016llx\n", number, what, static_cast<unsigned long long>(hash));
    }
}

void train_bucket(Job* job, int number) {
    Values gradient(kBucket);
    for (size_t i = 0; i < kBucket; ++i) {
        gradient[i] = job->bucket[i] - job->target[i];
    }
    put(job->given, gradient);
    CHECK_NCCL(
        ncclAllReduce(job->given, job->given, kBucket, ncclFloat32, ncclAvg, job->comm, nullptr));
    gradient = from(job->given, kBucket);
    print(*job, number, "bucket", gradient);
    for (size_t i = 0; i < kBucket; ++i) {
        job->bucket[i] -= kRate * gradient[i];
    }
}

// The shard's place in the file, and its parameters without padding.
struct Part {
    off_t offset;
    size_t bytes;
};
Part part_of(const Job& job, int unit) {
    const size_t begin = std::min(job.shard(unit) * static_cast<size_t>(job.rank), kUnits[unit]);
    const size_t end = std::min(begin + job.shard(unit), kUnits[unit]);
    const size_t before = kBucket + (unit == 1 ? kUnits[0] : 0);
    return {static_cast<off_t>((before + begin) * sizeof(float)), (end - begin) * sizeof(float)};
}

Values gather(Job* job, int unit) {
    put(job->given, job->shards[unit]);
    CHECK_NCCL(
        ncclAllGather(job->given, job->got, job->shard(unit), ncclFloat32, job->comm, nullptr));
    return from(job->got, job->shard(unit) * job->ranks);
}

void train_units(Job* job, int number) {
    (void)gather(job, 0);
    (void)gather(job, 1);
    for (int unit = 1; unit >= 0; --unit) {
        Values gradient = gather(job, unit);
        print(*job, number, "gathered", gradient);
        for (size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = i < kUnits[unit] ? gradient[i] - job->target[i] : 0.0f;
        }
        put(job->given, gradient);
        CHECK_NCCL(ncclReduceScatter(job->given, job->got, job->shard(unit), ncclFloat32, ncclAvg,
                                     job->comm, nullptr));
        gradient = from(job->got, job->shard(unit));
        print(*job, number, "shard", gradient);
        for (size_t i = 0; i < part_of(*job, unit).bytes / sizeof(float); ++i) {
            job->shards[unit][i] -= kRate * gradient[i];
        }
    }
}

// Every rank writes the bucket, which all have alike, and its shards.
void model(Job* job, const std::string& path, bool save) {
    const int file = ::open((path + ".model").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    const auto move = [&](Values* values, size_t bytes, off_t offset) {
        const ssize_t moved = save ? ::pwrite(file, values->data(), bytes, offset)
                                   : ::pread(file, values->data(), bytes, offset);
        EXPECT_THAT(moved == static_cast<ssize_t>(bytes), "%s.model", path.c_str());
    };
    move(&job->bucket, kBucket * sizeof(float), 0);
    for (int unit = 0; unit < 2; ++unit) {
        const Part part = part_of(*job, unit);
        move(&job->shards[unit], part.bytes, part.offset);
    }
    ::close(file);
}

void save(Job* job, const std::string& path) {
    if (path != "-") {
        model(job, path, true);
        if (const int saved = slimwire_save_state(path.c_str()); saved != SLIMWIRE_OK) {
            std::fprintf(stderr, "save %d: %s\n", saved, slimwire_last_error());
        }
    }
}

void print_loss(const Job& job) {
    double loss[2] = {};
    const auto add = [&](int which, size_t i, float parameter) {
        double mean = 0;
        for (int rank = 0; rank < 4; ++rank) {
            mean += target_of(i, rank) / 4;
        }
        loss[which] += (parameter - mean) * (parameter - mean);
    };
    for (size_t i = 0; i < kBucket; ++i) {
        add(0, i, job.bucket[i]);
    }
    for (int unit = 0; unit < 2; ++unit) {
        const Part part = part_of(job, unit);
        for (size_t i = 0; i < part.bytes / sizeof(float); ++i) {
            add(1, job.shard(unit) * static_cast<size_t>(job.rank) + i, job.shards[unit][i]);
        }
    }
    std::printf("%.9g %.9g\n", loss[0] / kBucket, loss[1]);
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc >= 6, "FROM TO LOAD SAVE AT");
    const int first = std::atoi(argv[1]), end = std::atoi(argv[2]), at = std::atoi(argv[5]);
    const std::string load = argv[3];
    Job job;
    job.prints = argc == 6;
    job.bucket.resize(kBucket);
    job.target.resize(kBucket);
    for (size_t i = 0; i < kBucket; ++i) {
        job.target[i] = target_of(i, job.rank);
    }
    for (int unit = 0; unit < 2; ++unit) {
        job.shards[unit].resize(job.shard(unit));
    }
    if (load != "-") {
        model(&job, load, false);
        // No NCCL call was made yet.
        if (const int loaded = slimwire_load_state(load.c_str()); loaded != SLIMWIRE_OK) {
            std::fprintf(stderr, "load %d: %s\n", loaded, slimwire_last_error());
        }
    }
    CHECK_CUDA(cudaSetDevice(0));
    const ncclUniqueId id = slimwire::test::exchange_id(job.rank);
    CHECK_NCCL(ncclCommInitRank(&job.comm, static_cast<int>(job.ranks), id, job.rank));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.given), kBucket * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.got), kBucket * sizeof(float)));
    for (int number = first; number < end; ++number) {
        if (number == at) {
            save(&job, argv[4]);
        }
        EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) >= SLIMWIRE_ABSENT, "%s",
                    slimwire_last_error());
        train_bucket(&job, number);
        train_units(&job, number);
    }
    if (at == end) {
        save(&job, argv[4]);
    }
    if (!job.prints) {
        print_loss(job);
    }
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
