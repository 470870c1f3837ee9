// A training job that can be stopped and go on, also on another number of ranks: a bucket that is
// averaged whole, as of DistributedDataParallel, and two units that are gathered, gathered again
// and reduced into shards, as of FSDP. Each rank pulls all parameters to a target of its own.
// Prints, of each step, hashes of what the ranks reduced and gathered.
//   checkpointed FROM TO LOAD SAVE AT [sum] [halves] [table=N] [named] [unmarked] [hybrid=K]
//   [pause] [counted]
// steps FROM to TO - 1; with `sum` by sums and not averages. `halves`: of the bucket. `table`: of
// it buckets of parameters, which rank 0 tells as DDP does, in one of two ways. `named`: these have
// names, and in the second way the model has them in another order; and so have the parts of units
// that copies average, cut along their one dimension. `unmarked`: marks
// no steps, and a step begins with the units; a loss is logged behind some, and what is saved is
// gathered before. `hybrid`: each K ranks share the units, and what they reduced is averaged over
// copies. `pause`: steps 12 to 14 are of no training, so that what has state is native. `counted`:
// prints at the end how many bytes slimwire read of saved states. Before step
// AT, or at the end where AT is TO, it saves slimwire's state to SAVE, the parameters to
// SAVE.model, and to SAVE.balance, as fp64, what the exact reductions so far were more than what
// came; "-" for none. LOAD names files.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/e2e/programs/room_of_ring.h"
#include "tests/support/nccl_program.h"

extern "C" int slimwire_emulator_contexts();

namespace {

std::atomic<ssize_t> bytes_read{0};

}  // namespace

// Calls of libraries come here because the program's own functions are found first.
#pragma GCC visibility push(default)
extern "C" ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
    using Pread = ssize_t(int, void*, size_t, off_t);
    static auto* const real = reinterpret_cast<Pread*>(::dlsym(RTLD_NEXT, "pread64"));
    const ssize_t got = real(file, bytes, count, offset);
    bytes_read += got;
    return got;
}
#pragma GCC visibility pop

namespace {

constexpr size_t kBucket = 262144 + 1000;    // 1 MiB and more
constexpr size_t kUnits[] = {30000, 70001};  // parameters

using Values = std::vector<float>;

// Elements of the bucket that are reduced together, one piece behind the other.
struct Piece {
    size_t begin, count;
};
using Message = std::vector<Piece>;

// Parameters of the bucket, and which of them DDP reduces together.
const std::vector<std::vector<int64_t>> kShapes = {{400, 500}, {500}, {200, 300}, {300}, {2344}};
const std::vector<std::vector<int32_t>> kTables[] = {{{4, 3, 2}, {1, 0}}, {{4, 1}, {3, 0}, {2}}};

struct Job {
    int rank = slimwire::test::launcher_rank();
    size_t ranks = static_cast<size_t>(slimwire::test::launcher_ranks());
    ncclComm_t comm = nullptr, sharing = nullptr, copies = nullptr;
    int part = rank;  // of the units
    size_t parts = ranks;
    float *given = nullptr, *got = nullptr;
    Values bucket;  // whole on every rank
    Values shards[2], target;
    ncclRedOp_t redop = ncclAvg;
    std::vector<Message> messages{{{0, kBucket}}};  // that the bucket is averaged by
    std::vector<double> wanted;                     // the mean target of all ranks
    std::vector<double> balance, shard_balances[2];
    bool named = false;

    // What the reduction of all ranks' gradients would be, of a parameter.
    [[nodiscard]] double exact(float parameter, size_t i) const {
        return (parameter - wanted[i]) * (redop == ncclAvg ? 1 : static_cast<double>(ranks));
    }
    [[nodiscard]] float rate() const {
        return redop == ncclAvg ? 0.125f : 0.125f / static_cast<float>(ranks);
    }

    [[nodiscard]] size_t shard(int unit) const { return (kUnits[unit] + parts - 1) / parts; }
};

// The targets are waves, some elements of which are larger.
void set_targets(Job* job) {
    constexpr size_t kWave = 4099;
    Values own(kWave);
    std::vector<double> mean(kWave);
    for (size_t i = 0; i < kWave * job->ranks; ++i) {
        const size_t at = i % kWave, rank = i / kWave;
        const float value =
            std::sin(0.37f * static_cast<float>(at) + 1.9f * static_cast<float>(rank));
        own[at] = rank == static_cast<size_t>(job->rank) ? value : own[at];
        mean[at] += static_cast<double>(value) / static_cast<double>(job->ranks);
    }
    for (size_t i = 0; i < kBucket; ++i) {
        const float size = i % 17 == 0 ? 8.0f : 1.0f;
        job->target[i] = own[i % kWave] * size;
        job->wanted[i] = mean[i % kWave] * static_cast<double>(size);
    }
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

void print(int number, const char* what, const Values& values) {
    uint64_t hash = 0;
    for (const float value : values) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3ull;
    }
    std::printf("%d %s %016llx\n", number, what, static_cast<unsigned long long>(hash));
}

// Of rank 0's values, as DDP gives them to the others.
template <class T>
void broadcast(Job* job, const std::vector<T>& values, ncclDataType_t type) {
    CHECK_CUDA(
        cudaMemcpy(job->given, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    CHECK_NCCL(ncclBroadcast(job->given, job->given, values.size(), type, 0, job->comm, nullptr));
    CHECK_CUDA(cudaStreamSynchronize(nullptr));
}

// The parameters in the model's order.
std::vector<size_t> model_of(bool turned) {
    std::vector<size_t> order(kShapes.size());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = turned ? order.size() - 1 - i : i;
    }
    return order;
}

// All ranks, before there is a communicator.
void tell_names(const std::vector<size_t>& model) {
    for (size_t i = 0; i < model.size(); ++i) {
        const std::vector<int64_t>& sizes = kShapes[model[i]];
        const std::string name = "parameter " + std::to_string(model[i]);
        EXPECT_THAT(slimwire_register_parameter(0, static_cast<uint32_t>(i), name.c_str(),
                                                sizes.data(), static_cast<int>(sizes.size())) == 0,
                    "%s", slimwire_last_error());
    }
}

void tell_parts(const Job& job) {
    for (int unit = 0; unit < 2; ++unit) {
        const std::string name = "unit " + std::to_string(unit);
        const auto index = static_cast<uint32_t>(unit);
        const auto size = static_cast<int64_t>(job.shard(unit));
        EXPECT_THAT(slimwire_register_parameter(1, index, name.c_str(), &size, 1) == 0 &&
                        slimwire_split_parameter(1, index, 0) == 0,
                    "%s", slimwire_last_error());
    }
}

// The bucket becomes those of the table.
void tell_table(Job* job,
                const std::vector<std::vector<int32_t>>& table,
                const std::vector<size_t>& model) {
    const int64_t parameters = static_cast<int64_t>(kShapes.size());
    CHECK_CUDA(cudaMemcpy(job->given, &parameters, sizeof parameters, cudaMemcpyHostToDevice));
    CHECK_NCCL(ncclAllGather(job->given, job->got, 1, ncclInt64, job->comm, nullptr));
    std::vector<int64_t> shapes;
    std::vector<Piece> pieces;
    size_t begin = 0;
    std::vector<int32_t> index_of(model.size());
    for (size_t i = 0; i < model.size(); ++i) {
        const std::vector<int64_t>& sizes = kShapes[model[i]];
        index_of[model[i]] = static_cast<int32_t>(i);
        shapes.insert(shapes.end(), sizes.begin(), sizes.end());
        for (size_t d = 0; d < sizes.size(); ++d) {
            shapes.push_back(d + 1 < sizes.size() ? sizes[d + 1] : 1);  // strides
        }
    }
    for (const std::vector<int64_t>& sizes : kShapes) {
        const auto count = static_cast<size_t>(sizes[0] * (sizes.size() > 1 ? sizes[1] : 1));
        pieces.push_back({begin, count});
        begin += count;
    }
    broadcast(job, shapes, ncclInt64);
    std::vector<int32_t> indices, sizes;
    job->messages.clear();
    for (const std::vector<int32_t>& bucket : table) {
        sizes.push_back(static_cast<int32_t>(bucket.size()));
        Message& message = job->messages.emplace_back();
        for (const int32_t parameter : bucket) {
            message.push_back(pieces[static_cast<size_t>(parameter)]);
            indices.push_back(index_of[static_cast<size_t>(parameter)]);
        }
    }
    indices.push_back(static_cast<int32_t>(table.size()));
    broadcast(job, indices, ncclInt32);
    broadcast(job, sizes, ncclInt32);
}

void train_bucket(Job* job, int number) {
    Values gradient(kBucket);
    for (size_t i = 0; i < kBucket; ++i) {
        gradient[i] = job->bucket[i] - job->target[i];
    }
    for (const Message& message : job->messages) {
        Values values;
        for (const Piece& piece : message) {
            const auto begin = gradient.begin() + static_cast<ptrdiff_t>(piece.begin);
            values.insert(values.end(), begin, begin + static_cast<ptrdiff_t>(piece.count));
        }
        put(job->given, values);
        CHECK_NCCL(ncclAllReduce(job->given, job->given, values.size(), ncclFloat32, job->redop,
                                 job->comm, nullptr));
        values = from(job->given, values.size());
        auto next = values.begin();
        for (const Piece& piece : message) {
            std::copy_n(next, piece.count, gradient.begin() + static_cast<ptrdiff_t>(piece.begin));
            next += static_cast<ptrdiff_t>(piece.count);
        }
    }
    print(number, "bucket", gradient);
    for (size_t i = 0; i < kBucket; ++i) {
        job->balance[i] += job->exact(job->bucket[i], i) - gradient[i];
        job->bucket[i] -= job->rate() * gradient[i];
    }
}

// The shard's place in the file, and its parameters without padding.
struct Part {
    off_t offset;
    size_t bytes;
};
Part part_of(const Job& job, int unit) {
    const size_t begin = std::min(job.shard(unit) * static_cast<size_t>(job.part), kUnits[unit]);
    const size_t end = std::min(begin + job.shard(unit), kUnits[unit]);
    const size_t before = kBucket + (unit == 1 ? kUnits[0] : 0);
    return {static_cast<off_t>((before + begin) * sizeof(float)), (end - begin) * sizeof(float)};
}

Values gather(Job* job, int unit) {
    put(job->given, job->shards[unit]);
    CHECK_NCCL(
        ncclAllGather(job->given, job->got, job->shard(unit), ncclFloat32, job->sharing, nullptr));
    return from(job->got, job->shard(unit) * job->parts);
}

void train_units(Job* job, int number) {
    (void)gather(job, 0);
    (void)gather(job, 1);
    for (int unit = 1; unit >= 0; --unit) {
        Values gradient = gather(job, unit);
        print(number, "gathered", gradient);
        for (size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = i < kUnits[unit] ? gradient[i] - job->target[i] : 0.0f;
        }
        put(job->given, gradient);
        CHECK_NCCL(ncclReduceScatter(job->given, job->got, job->shard(unit), ncclFloat32,
                                     job->redop, job->sharing, nullptr));
        if (job->copies != nullptr) {
            const std::string name = "unit " + std::to_string(unit);
            if (job->named) {
                EXPECT_THAT(slimwire_name_tensor(job->got, job->shard(unit) * sizeof(float),
                                                 name.c_str()) == 0,
                            "%s", slimwire_last_error());
            }
            CHECK_NCCL(ncclAllReduce(job->got, job->got, job->shard(unit), ncclFloat32, job->redop,
                                     job->copies, nullptr));
        }
        gradient = from(job->got, job->shard(unit));
        print(number, "shard", gradient);
        for (size_t i = 0; i < part_of(*job, unit).bytes / sizeof(float); ++i) {
            const size_t at = job->shard(unit) * static_cast<size_t>(job->part) + i;
            job->shard_balances[unit][i] += job->exact(job->shards[unit][i], at) - gradient[i];
            job->shards[unit][i] -= job->rate() * gradient[i];
        }
    }
}

// Every rank moves the bucket, which all have alike, and its shards.
template <class Value>
void move_file(Job* job,
               const std::string& path,
               bool save,
               std::vector<Value>* bucket,
               std::vector<Value>* shards) {
    constexpr size_t kWider = sizeof(Value) / sizeof(float);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    const auto move = [&](std::vector<Value>* values, const Part& part) {
        const size_t bytes = part.bytes * kWider;
        const auto offset = static_cast<off_t>(kWider) * part.offset;
        const ssize_t moved = save ? ::pwrite(file, values->data(), bytes, offset)
                                   : ::pread(file, values->data(), bytes, offset);
        EXPECT_THAT(moved == static_cast<ssize_t>(bytes), "%s", path.c_str());
    };
    move(bucket, {0, kBucket * sizeof(float)});
    for (int unit = 0; unit < 2; ++unit) {
        move(&shards[unit], part_of(*job, unit));
    }
    ::close(file);
}

void save(Job* job, const std::string& path) {
    if (path != "-") {
        move_file(job, path + ".model", true, &job->bucket, job->shards);
        move_file(job, path + ".balance", true, &job->balance, job->shard_balances);
        if (const int saved = slimwire_save_state(path.c_str()); saved != SLIMWIRE_OK) {
            std::fprintf(stderr, "save %d: %s\n", saved, slimwire_last_error());
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT_THAT(argc >= 6, "FROM TO LOAD SAVE AT");
    const int first = std::atoi(argv[1]), end = std::atoi(argv[2]), at = std::atoi(argv[5]);
    const std::string load = argv[3];
    Job job;
    bool marks = true, pause = false, counted = false;
    int hybrid = 0;
    size_t table = 0;
    for (const std::string& option : std::vector<std::string>(argv + 6, argv + argc)) {
        job.redop = option == "sum" ? ncclSum : job.redop;
        if (option == "halves") {
            job.messages = {{{0, kBucket / 2}}, {{kBucket / 2, kBucket / 2}}};
        }
        table = option.starts_with("table=") ? std::stoul(option.substr(6)) : table;
        job.named |= option == "named";
        marks &= option != "unmarked";
        hybrid = option.starts_with("hybrid=") ? std::stoi(option.substr(7)) : hybrid;
        pause |= option == "pause";
        counted |= option == "counted";
    }
    job.bucket.resize(kBucket);
    job.target.resize(kBucket);
    job.balance.resize(kBucket);
    job.wanted.resize(kBucket);
    set_targets(&job);
    if (hybrid > 0) {
        job.part = job.rank % hybrid;
        job.parts = static_cast<size_t>(hybrid);
    }
    for (int unit = 0; unit < 2; ++unit) {
        job.shards[unit].resize(job.shard(unit));
        job.shard_balances[unit].resize(job.shard(unit));
    }
    if (load != "-") {
        move_file(&job, load + ".model", false, &job.bucket, job.shards);
        bytes_read = 0;
        // No NCCL call was made yet. SLIMWIRE_STATE finds the state itself.
        const bool found = std::getenv("SLIMWIRE_STATE") != nullptr;
        if (const int loaded = found ? SLIMWIRE_OK : slimwire_load_state(load.c_str());
            loaded != SLIMWIRE_OK) {
            std::fprintf(stderr, "load %d: %s\n", loaded, slimwire_last_error());
        }
    }
    const std::vector<size_t> model = model_of(job.named && table == 2);
    if (job.named) {
        tell_names(model);
        tell_parts(job);
    }
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(devices - 1));
    const ncclUniqueId id = slimwire::test::exchange_id(job.rank);
    CHECK_NCCL(ncclCommInitRank(&job.comm, static_cast<int>(job.ranks), id, job.rank));
    job.sharing = job.comm;
    if (hybrid > 0) {
        CHECK_NCCL(ncclCommSplit(job.comm, job.rank / hybrid, job.rank, &job.sharing, nullptr));
        CHECK_NCCL(ncclCommSplit(job.comm, job.part, job.rank, &job.copies, nullptr));
    }
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.given), kBucket * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&job.got), kBucket * sizeof(float)));
    if (table > 0) {
        tell_table(&job, kTables[table - 1], model);
    }
    for (int number = first; number < end; ++number) {
        if (!marks && number == 12 && first < 2 && std::getenv("SLIMWIRE_STATE") != nullptr) {
            slimwire::test::await_room_of_ring();
        }
        if (pause && (number == 12 || number == 15)) {
            (void)slimwire_mark_phase(number == 12 ? SLIMWIRE_OTHER : SLIMWIRE_TRAINING);
        }
        if (!marks && number > 9 && number % 3 == 1) {
            CHECK_NCCL(
                ncclAllReduce(job.given, job.got, 1, ncclFloat32, ncclSum, job.sharing, nullptr));
        }
        if (number == at) {
            if (!marks) {
                CHECK_NCCL(
                    ncclAllGather(job.given, job.got, 100, ncclFloat32, job.sharing, nullptr));
            }
            save(&job, argv[4]);
        }
        if (!marks) {
            train_units(&job, number);
            train_bucket(&job, number);
            continue;
        }
        EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(number)) >= SLIMWIRE_ABSENT, "%s",
                    slimwire_last_error());
        train_bucket(&job, number);
        train_units(&job, number);
    }
    if (at == end) {
        save(&job, argv[4]);
    }
    if (counted) {
        std::printf("read %zd\n", bytes_read.load());
    }
    EXPECT_THAT(slimwire_emulator_contexts() == 1, "%d contexts", slimwire_emulator_contexts());
    if (hybrid > 0) {
        CHECK_NCCL(ncclCommDestroy(job.sharing));
        CHECK_NCCL(ncclCommDestroy(job.copies));
    }
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
