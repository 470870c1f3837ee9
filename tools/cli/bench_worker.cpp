// One rank of `slimwire bench collective`: an ordinary CUDA and NCCL program without any header
// of the library. In each round it times the native operation (through NCCL's profiling twins
// pnccl*, which nobody intercepts), the program's own, and native calls that move as many plain
// bytes as the program's own call gave to the transport, in turn. Rank 0 checks its result against
// a float64 reference and writes one JSON line per size.
//
// RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR say where it stands; usage in kUsage.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tools/cli/bench_worker_data.h"
#include "tools/cli/bench_worker_meeting.h"

namespace slimwire::bench {
namespace {

constexpr char kUsage[] =
    "usage: slimwire-bench-worker --op OP --dtype f32|f16|bf16 --bytes N[,N...] --port P\n"
    "       [--rounds N] [--warmup N] [--seed N] [--out FILE]";

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        stop(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        stop(std::string(what) + ": " + ncclGetErrorString(result));
    }
}

// --- Arguments

// kSendRecv: to the next rank and from the one before, in a group. kPairs: even ranks send to the
// next one, odd ones receive, each call by itself.
enum class Operation {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kAllToAll,
    kBroadcast,
    kReduce,
    kSendRecv,
    kPairs,
};
constexpr const char* kOperations[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                       "broadcast",  "reduce",         "send_recv",  "pairs"};

struct Options {
    Operation operation = Operation::kAllReduce;
    Type type = Type::kF32;
    std::vector<size_t> bytes;
    int port = 0;
    int rounds = 5;
    int warmup = 1;
    uint64_t seed = 1;
    std::string out;
};

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string flag = argv[i];
        if (i + 1 == argc) {
            stop(kUsage);
        }
        const std::string value = argv[i + 1];
        if (flag == "--op") {
            const auto* const end = std::end(kOperations);
            const auto* const found = std::find(std::begin(kOperations), end, value);
            if (found == end) {
                stop(kUsage);
            }
            options.operation = static_cast<Operation>(found - std::begin(kOperations));
        } else if (flag == "--dtype" && (value == "f32" || value == "f16" || value == "bf16")) {
            options.type = value == "f32" ? Type::kF32 : value == "f16" ? Type::kF16 : Type::kBf16;
        } else if (flag == "--bytes") {
            for (const char* at = value.c_str(); *at != '\0';) {
                char* end = nullptr;
                options.bytes.push_back(std::strtoull(at, &end, 10));
                if (end == at || (*end != '\0' && *end != ',')) {
                    stop(kUsage);
                }
                at = *end == ',' ? end + 1 : end;
            }
        } else if (flag == "--port") {
            options.port = std::atoi(value.c_str());
        } else if (flag == "--rounds") {
            options.rounds = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--warmup") {
            options.warmup = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--seed") {
            options.seed = std::strtoull(value.c_str(), nullptr, 10);
        } else if (flag == "--out") {
            options.out = value;
        } else {
            stop(kUsage);
        }
    }
    if (options.bytes.empty() || options.port <= 0) {
        stop(kUsage);
    }
    return options;
}

int integer_variable(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

// --- The emulator's count of what was handed to the transport; absent on real NCCL

struct Counters {
    uint64_t payload_bytes_sent, payload_bytes_received, inter_node_bytes_sent, messages_sent;
};
using CountersFunction = void (*)(Counters*);

// --- The measurement

// The functions of one way: as the program's symbols resolve, or NCCL's own.
struct Nccl {
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclAlltoAll) all_to_all;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclReduce) reduce;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
};
constexpr Nccl kOwn = {&ncclAllReduce,  &ncclReduceScatter, &ncclAllGather, &ncclAlltoAll,
                       &ncclBroadcast,  &ncclReduce,        &ncclSend,      &ncclRecv,
                       &ncclGroupStart, &ncclGroupEnd};
constexpr Nccl kNative = {&pncclAllReduce,  &pncclReduceScatter, &pncclAllGather, &pncclAlltoAll,
                          &pncclBroadcast,  &pncclReduce,        &pncclSend,      &pncclRecv,
                          &pncclGroupStart, &pncclGroupEnd};

// What is timed in a round, in this order.
enum Timed { kTimedNative, kTimedOwn, kTimedRaw, kTimedKinds };

class Worker {
  public:
    explicit Worker(Options options) : options_(std::move(options)) {}
    void run();

  private:
    void measure(size_t bytes, std::FILE* out);
    // Of one call on this rank: microseconds, and what it gave to the transport (-1: not counted).
    struct Sample {
        double us = 0;
        double wire_bytes = -1, between_nodes = -1;
    };
    template <class Call>
    Sample timed(Call call);
    void enqueue(const Nccl& nccl, size_t count);
    void enqueue_raw(size_t wire_bytes);
    void barrier();
    std::vector<double> gather(const std::vector<double>& mine);
    // Of what the operation delivers to this rank.
    [[nodiscard]] size_t input_elems(size_t count) const;
    [[nodiscard]] size_t output_elems(size_t count) const;
    [[nodiscard]] double exact(size_t count, size_t index) const;
    [[nodiscard]] double relative_error(const std::vector<char>& result, size_t count) const;
    [[nodiscard]] bool alike_on_all_ranks() const;

    Options options_;
    int rank_ = 0, ranks_ = 1;
    ncclComm_t comm_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    void *send_ = nullptr, *recv_ = nullptr, *small_ = nullptr;
    size_t small_bytes_ = 0;
    CountersFunction counters_ = nullptr;
};

void Worker::run() {
    rank_ = integer_variable("RANK", 0);
    ranks_ = integer_variable("WORLD_SIZE", 1);
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    check(cudaSetDevice(integer_variable("LOCAL_RANK", 0) % std::max(1, devices)), "cudaSetDevice");
    counters_ =
        reinterpret_cast<CountersFunction>(dlsym(RTLD_DEFAULT, "slimwire_emulator_counters"));

    const char* host = std::getenv("MASTER_ADDR");
    const ncclUniqueId id =
        meet(host != nullptr ? host : "127.0.0.1", options_.port, rank_, ranks_);
    check(ncclCommInitRank(&comm_, ranks_, id, rank_), "ncclCommInitRank");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    // Room for the gathered figures of all ranks, behind those of this one.
    small_bytes_ = sizeof(double) * (static_cast<size_t>(options_.rounds) * kTimedKinds + 8);
    check(cudaMalloc(&small_, small_bytes_ * (static_cast<size_t>(ranks_) + 1)), "cudaMalloc");

    std::FILE* out = nullptr;
    if (rank_ == 0) {
        out = options_.out.empty() ? stdout : std::fopen(options_.out.c_str(), "w");
        if (out == nullptr) {
            stop(options_.out + ": " + std::strerror(errno));
        }
    }
    for (const size_t bytes : options_.bytes) {
        measure(bytes, out);
    }
    if (out != nullptr && out != stdout) {
        std::fclose(out);
    }
    check(cudaFree(small_), "cudaFree");
    check(cudaEventDestroy(begin_), "cudaEventDestroy");
    check(cudaEventDestroy(end_), "cudaEventDestroy");
    check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
    check(ncclCommDestroy(comm_), "ncclCommDestroy");
}

void Worker::barrier() {
    check(pncclAllReduce(small_, small_, 1, ncclFloat32, ncclSum, comm_, stream_), "barrier");
    check(cudaStreamSynchronize(stream_), "barrier");
}

void Worker::enqueue(const Nccl& nccl, size_t count) {
    const ncclDataType_t type = nccl_type(options_.type);
    const int next = (rank_ + 1) % ranks_;
    const int former = (rank_ + ranks_ - 1) % ranks_;
    switch (options_.operation) {
        case Operation::kAllReduce:
            return check(nccl.all_reduce(send_, recv_, count, type, ncclSum, comm_, stream_),
                         "ncclAllReduce");
        case Operation::kReduceScatter:
            return check(nccl.reduce_scatter(send_, recv_, count, type, ncclSum, comm_, stream_),
                         "ncclReduceScatter");
        case Operation::kAllGather:
            return check(nccl.all_gather(send_, recv_, count, type, comm_, stream_),
                         "ncclAllGather");
        case Operation::kAllToAll:
            return check(nccl.all_to_all(send_, recv_, count, type, comm_, stream_),
                         "ncclAlltoAll");
        case Operation::kBroadcast:
            return check(nccl.broadcast(send_, recv_, count, type, 0, comm_, stream_),
                         "ncclBroadcast");
        case Operation::kReduce:
            return check(nccl.reduce(send_, recv_, count, type, ncclSum, 0, comm_, stream_),
                         "ncclReduce");
        case Operation::kSendRecv:
            check(nccl.group_start(), "ncclGroupStart");
            check(nccl.send(send_, count, type, next, comm_, stream_), "ncclSend");
            check(nccl.recv(recv_, count, type, former, comm_, stream_), "ncclRecv");
            return check(nccl.group_end(), "ncclGroupEnd");
        case Operation::kPairs:
            if (rank_ % 2 == 1) {
                check(nccl.recv(recv_, count, type, former, comm_, stream_), "ncclRecv");
            } else if (next > rank_) {
                check(nccl.send(send_, count, type, next, comm_, stream_), "ncclSend");
            }
            return;
    }
}

// As many plain bytes as the call gave to the transport, by the same kinds of exchange.
void Worker::enqueue_raw(size_t wire_bytes) {
    const auto others = static_cast<size_t>(ranks_ - 1);
    const int next = (rank_ + 1) % ranks_;
    const int former = (rank_ + ranks_ - 1) % ranks_;
    switch (options_.operation) {
        case Operation::kAllReduce: {
            const size_t slot = wire_bytes / 2 / others;
            check(pncclAlltoAll(send_, recv_, slot, ncclUint8, comm_, stream_), "ncclAlltoAll");
            return check(pncclAllGather(send_, recv_, slot, ncclUint8, comm_, stream_),
                         "ncclAllGather");
        }
        case Operation::kReduceScatter:
        case Operation::kAllToAll:
            return check(
                pncclAlltoAll(send_, recv_, wire_bytes / others, ncclUint8, comm_, stream_),
                "ncclAlltoAll");
        case Operation::kAllGather:
            return check(
                pncclAllGather(send_, recv_, wire_bytes / others, ncclUint8, comm_, stream_),
                "ncclAllGather");
        case Operation::kBroadcast:
            return check(pncclBroadcast(send_, recv_, wire_bytes, ncclUint8, 0, comm_, stream_),
                         "ncclBroadcast");
        case Operation::kReduce: {
            // The root sends N-1 slots, the others N.
            const size_t slot = wire_bytes / static_cast<size_t>(ranks_);
            check(pncclAlltoAll(send_, recv_, slot, ncclUint8, comm_, stream_), "ncclAlltoAll");
            return check(pncclGather(send_, recv_, slot, ncclUint8, 0, comm_, stream_),
                         "ncclGather");
        }
        case Operation::kSendRecv:
            check(pncclGroupStart(), "ncclGroupStart");
            check(pncclSend(send_, wire_bytes, ncclUint8, next, comm_, stream_), "ncclSend");
            check(pncclRecv(recv_, wire_bytes, ncclUint8, former, comm_, stream_), "ncclRecv");
            return check(pncclGroupEnd(), "ncclGroupEnd");
        case Operation::kPairs:
            if (rank_ % 2 == 1) {
                check(pncclRecv(recv_, wire_bytes, ncclUint8, former, comm_, stream_), "ncclRecv");
            } else if (next > rank_) {
                check(pncclSend(send_, wire_bytes, ncclUint8, next, comm_, stream_), "ncclSend");
            }
            return;
    }
}

template <class Call>
Worker::Sample Worker::timed(Call call) {
    barrier();
    Counters before{};
    Counters after{};
    if (counters_ != nullptr) {
        counters_(&before);
    }
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    call();
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    Sample sample;
    sample.us = static_cast<double>(milliseconds) * 1e3;
    if (counters_ != nullptr) {
        counters_(&after);
        sample.wire_bytes =
            static_cast<double>(after.payload_bytes_sent - before.payload_bytes_sent);
        sample.between_nodes =
            static_cast<double>(after.inter_node_bytes_sent - before.inter_node_bytes_sent);
    }
    return sample;
}

// Everybody's figures, rank after rank.
std::vector<double> Worker::gather(const std::vector<double>& mine) {
    const size_t bytes = mine.size() * sizeof(double);
    if (bytes > small_bytes_) {
        stop("too many figures to gather");
    }
    std::vector<double> all(mine.size() * static_cast<size_t>(ranks_));
    char* gathered = static_cast<char*>(small_) + small_bytes_;
    check(cudaMemcpy(small_, mine.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(pncclAllGather(small_, gathered, bytes, ncclUint8, comm_, stream_), "gather");
    check(cudaStreamSynchronize(stream_), "gather");
    check(cudaMemcpy(all.data(), gathered, all.size() * sizeof(double), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return all;
}

size_t Worker::input_elems(size_t count) const {
    const bool blocks = options_.operation == Operation::kReduceScatter ||
                        options_.operation == Operation::kAllToAll;
    return blocks ? count * static_cast<size_t>(ranks_) : count;
}

size_t Worker::output_elems(size_t count) const {
    const bool blocks =
        options_.operation == Operation::kAllGather || options_.operation == Operation::kAllToAll;
    return blocks ? count * static_cast<size_t>(ranks_) : count;
}

bool Worker::alike_on_all_ranks() const {
    return options_.operation == Operation::kAllReduce ||
           options_.operation == Operation::kAllGather ||
           options_.operation == Operation::kBroadcast;
}

// What element `index` of this rank's result should be.
double Worker::exact(size_t count, size_t index) const {
    const auto input = [&](size_t rank, size_t at) {
        return static_cast<double>(
            rounded(options_.type, gaussian(options_.seed, static_cast<int>(rank), at)));
    };
    const auto mine = static_cast<size_t>(rank_);
    const auto ranks = static_cast<size_t>(ranks_);
    size_t at = index;
    switch (options_.operation) {
        case Operation::kAllGather:
            return input(index / count, index % count);
        case Operation::kAllToAll:
            return input(index / count, mine * count + index % count);
        case Operation::kBroadcast:
            return input(0, index);
        case Operation::kSendRecv:
        case Operation::kPairs:
            return input((mine + ranks - 1) % ranks, index);
        case Operation::kReduceScatter:
            at = mine * count + index;
            break;
        case Operation::kAllReduce:
        case Operation::kReduce:
            break;
    }
    double sum = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
        sum += input(rank, at);
    }
    return sum;
}

double Worker::relative_error(const std::vector<char>& result, size_t count) const {
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < output_elems(count); ++i) {
        const double expected = exact(count, i);
        const double off = static_cast<double>(load(options_.type, result.data(), i)) - expected;
        error += off * off;
        norm += expected * expected;
    }
    return norm > 0 ? std::sqrt(error / norm) : 0;
}

void Worker::measure(size_t bytes, std::FILE* out) {
    const size_t elem = element_bytes(options_.type);
    size_t count = std::max<size_t>(1, bytes / elem);
    if (input_elems(1) > 1 || output_elems(1) > 1) {
        count = std::max<size_t>(1, count / static_cast<size_t>(ranks_));
    }
    const size_t send_bytes = input_elems(count) * elem;
    const size_t recv_bytes = output_elems(count) * elem;
    // Either is the other's size in the raw exchange.
    const size_t room = std::max(send_bytes, recv_bytes) + 4096 * static_cast<size_t>(ranks_);
    check(cudaMalloc(&send_, room), "cudaMalloc");
    check(cudaMalloc(&recv_, room), "cudaMalloc");
    std::vector<char> host(std::max(send_bytes, recv_bytes));
    for (size_t i = 0; i < input_elems(count); ++i) {
        store(options_.type, host.data(), i, gaussian(options_.seed, rank_, i));
    }

    std::vector<double> figures;
    Sample samples[kTimedKinds];
    for (int round = -options_.warmup; round < options_.rounds; ++round) {
        samples[kTimedNative] = timed([&] { enqueue(kNative, count); });
        // The raw exchange went over the inputs.
        check(cudaMemcpy(send_, host.data(), send_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
        samples[kTimedOwn] = timed([&] { enqueue(kOwn, count); });
        if (round + 1 == options_.rounds) {
            host.resize(recv_bytes);
            check(cudaMemcpy(host.data(), recv_, recv_bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
        }
        // Everybody must move the same sizes; the largest sender says which.
        double wire_bytes = 0;
        for (const double of_rank : gather({samples[kTimedOwn].wire_bytes})) {
            wire_bytes = std::max(wire_bytes, of_rank);
        }
        if (wire_bytes > 0 && ranks_ > 1) {
            samples[kTimedRaw] = timed([&] { enqueue_raw(static_cast<size_t>(wire_bytes)); });
        }
        for (const Sample& sample : samples) {
            if (round >= 0) {
                figures.push_back(sample.us);
            }
        }
    }
    uint64_t hash = 1;
    for (size_t i = 0; i < recv_bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, host.data() + i, std::min(sizeof word, recv_bytes - i));
        hash = mix(hash ^ word);
    }
    const auto mine = static_cast<double>(hash >> 12);
    figures.push_back(samples[kTimedNative].wire_bytes);
    figures.push_back(samples[kTimedOwn].wire_bytes);
    figures.push_back(mine);
    // Even ranks of pairs receive nothing, so the second rank judges.
    const int judge = options_.operation == Operation::kPairs ? 1 : 0;
    figures.push_back(rank_ == judge ? relative_error(host, count) : 0);
    figures.push_back(samples[kTimedNative].between_nodes);
    figures.push_back(samples[kTimedOwn].between_nodes);
    const std::vector<double> all = gather(figures);
    check(cudaFree(send_), "cudaFree");
    check(cudaFree(recv_), "cudaFree");
    if (rank_ != 0) {
        return;
    }

    const size_t stride = figures.size();
    const auto rounds = static_cast<size_t>(options_.rounds);
    std::string lists[kTimedKinds];
    for (size_t kind = 0; kind < kTimedKinds; ++kind) {
        for (size_t round = 0; round < rounds; ++round) {
            double slowest = 0;
            for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
                slowest = std::max(slowest, all[rank * stride + round * kTimedKinds + kind]);
            }
            lists[kind] += (round == 0 ? "" : ",") + std::to_string(slowest);
        }
    }
    double sent[2] = {0, 0}, between_nodes[2] = {0, 0};
    double error = 0;
    bool identical = true;
    for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
        const double* of_rank = &all[rank * stride + kTimedKinds * rounds];
        sent[0] += of_rank[0];
        sent[1] += of_rank[1];
        identical = identical && (of_rank[2] == mine || !alike_on_all_ranks());
        error = std::max(error, of_rank[3]);
        between_nodes[0] += of_rank[4];
        between_nodes[1] += of_rank[5];
    }
    // The average of those that send.
    const int senders = options_.operation == Operation::kPairs ? ranks_ / 2 : ranks_;
    const bool counted = counters_ != nullptr;
    std::fprintf(out,
                 "{\"bytes\":%zu,\"count\":%zu,\"ranks\":%d,\"calls\":%d,\"counted\":%s,"
                 "\"native_wire_bytes\":%.1f,\"wire_bytes\":%.1f,\"identical\":%s,"
                 "\"native_between_nodes_bytes\":%.0f,\"between_nodes_bytes\":%.0f,"
                 "\"rel_error\":%.9g,\"native_us\":[%s],\"time_us\":[%s],\"raw_us\":[%s]}\n",
                 std::max(send_bytes, recv_bytes), count, ranks_, options_.warmup + options_.rounds,
                 counted ? "true" : "false", sent[0] / senders, sent[1] / senders,
                 identical ? "true" : "false", between_nodes[0], between_nodes[1], error,
                 lists[kTimedNative].c_str(), lists[kTimedOwn].c_str(), lists[kTimedRaw].c_str());
    std::fflush(out);
}

}  // namespace
}  // namespace slimwire::bench

int main(int argc, char** argv) {
    using namespace slimwire::bench;
    Worker(parse(argc, argv)).run();
    return 0;
}
