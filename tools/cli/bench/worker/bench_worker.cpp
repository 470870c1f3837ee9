// One rank of `slimwire bench collective`: an ordinary CUDA and NCCL program that does not know the
// library. In each round it times the native operation (through NCCL's profiling twins pnccl*,
// which nobody intercepts), the program's own, and native calls that move as many plain bytes as
// the program's own call gave to the transport, in turn. Rank 0 checks its result against a float64
// reference and writes one JSON line per size.
//
// RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR say where it stands.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tools/cli/bench/worker/bench_worker_calls.h"
#include "tools/demo_train/error.h"
#include "tools/demo_train/rendezvous.h"

namespace slimwire::bench {
namespace {

// --- The emulator's count of what was handed to the transport; absent on real NCCL

struct Counters {
    uint64_t payload_bytes_sent, payload_bytes_received, inter_node_bytes_sent, messages_sent;
};
using CountersFunction = void (*)(Counters*);

// Of slimwire.h, where the library is there: codecs of low rank want to know places in the step.
using MarkFunction = int (*)(uint64_t step);

// What goes in, and what a rank should get, in float64. Of one rank; `count` is NCCL's argument.
struct Delivery {
    const Options& options;
    int rank, ranks;

    [[nodiscard]] size_t input_elems(size_t count) const;
    [[nodiscard]] size_t output_elems(size_t count) const;
    // Relative L2 error of the result, which stands in the options' type.
    [[nodiscard]] double relative_error(const std::vector<char>& result, size_t count) const;
    [[nodiscard]] bool alike_on_all_ranks() const;
};

// What element `index` should be.
double exact(const Delivery& of, size_t count, size_t index) {
    const auto input = [&](size_t rank, size_t at) {
        return static_cast<double>(
            rounded(of.options.type, gaussian(of.options.seed, static_cast<int>(rank), at)));
    };
    const auto mine = static_cast<size_t>(of.rank);
    const auto ranks = static_cast<size_t>(of.ranks);
    size_t at = index;
    switch (of.options.operation) {
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

size_t Delivery::input_elems(size_t count) const {
    const bool blocks =
        options.operation == Operation::kReduceScatter || options.operation == Operation::kAllToAll;
    return blocks ? count * static_cast<size_t>(ranks) : count;
}

size_t Delivery::output_elems(size_t count) const {
    const bool blocks =
        options.operation == Operation::kAllGather || options.operation == Operation::kAllToAll;
    return blocks ? count * static_cast<size_t>(ranks) : count;
}

bool Delivery::alike_on_all_ranks() const {
    return options.operation == Operation::kAllReduce ||
           options.operation == Operation::kAllGather || options.operation == Operation::kBroadcast;
}

double Delivery::relative_error(const std::vector<char>& result, size_t count) const {
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < output_elems(count); ++i) {
        const double expected = exact(*this, count, i);
        const double off = static_cast<double>(load(options.type, result.data(), i)) - expected;
        error += off * off;
        norm += expected * expected;
    }
    return norm > 0 ? std::sqrt(error / norm) : 0;
}

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
    void barrier();
    std::vector<double> gather(const std::vector<double>& mine);
    struct Message {
        size_t count = 0, send_bytes = 0, recv_bytes = 0;
    };
    std::vector<double> run_rounds(const Message& message,
                                   const Delivery& delivery,
                                   std::vector<char>* host);
    void print(const Message& message,
               const Delivery& delivery,
               const std::vector<double>& all,
               std::FILE* out) const;

    Options options_;
    int rank_ = 0, ranks_ = 1;
    ncclComm_t comm_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    void *send_ = nullptr, *recv_ = nullptr, *small_ = nullptr;
    size_t small_bytes_ = 0;
    CountersFunction counters_ = nullptr;
    MarkFunction mark_ = nullptr;
};

void Worker::run() {
    demo::World world = demo::world_from_environment();
    world.master_port = std::to_string(options_.port);
    world.on_every_address = true;
    rank_ = world.rank;
    ranks_ = world.size;
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    check(cudaSetDevice(world.local_rank % std::max(1, devices)), "cudaSetDevice");
    counters_ =
        reinterpret_cast<CountersFunction>(dlsym(RTLD_DEFAULT, "slimwire_emulator_counters"));

    mark_ = reinterpret_cast<MarkFunction>(dlsym(RTLD_DEFAULT, "slimwire_mark_step"));
    ncclUniqueId id{};
    if (rank_ == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    demo::exchange_from_rank0(world, std::as_writable_bytes(std::span(&id, 1)),
                              std::chrono::minutes(1));
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

uint64_t hash_of(const std::vector<char>& data, size_t bytes) {
    uint64_t hash = 1;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, data.data() + i, std::min(sizeof word, bytes - i));
        hash = mix(hash ^ word);
    }
    return hash;
}

// Returns the times of the measured rounds, kTimedKinds of each, then six figures of the last one.
// `host` holds the inputs, and afterwards the last round's outputs.
std::vector<double> Worker::run_rounds(const Message& message,
                                       const Delivery& delivery,
                                       std::vector<char>* host) {
    const Calls calls{
        options_.operation, options_.type, rank_, ranks_, comm_, stream_, send_, recv_};
    std::vector<double> figures;
    Sample samples[kTimedKinds];
    for (int round = -options_.warmup; round < options_.rounds; ++round) {
        samples[kTimedNative] = timed([&] { calls.native(message.count); });
        // The raw exchange went over the inputs.
        check(cudaMemcpy(send_, host->data(), message.send_bytes, cudaMemcpyHostToDevice),
              "cudaMemcpy");
        if (mark_ != nullptr) {
            (void)mark_(static_cast<uint64_t>(round + options_.warmup));
        }
        samples[kTimedOwn] = timed([&] { calls.own(message.count); });
        if (round + 1 == options_.rounds) {
            host->resize(message.recv_bytes);
            check(cudaMemcpy(host->data(), recv_, message.recv_bytes, cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
        }
        // Everybody must move the same sizes; the largest sender says which.
        double wire_bytes = 0;
        for (const double of_rank : gather({samples[kTimedOwn].wire_bytes})) {
            wire_bytes = std::max(wire_bytes, of_rank);
        }
        if (wire_bytes > 0 && ranks_ > 1) {
            samples[kTimedRaw] = timed([&] { calls.raw(static_cast<size_t>(wire_bytes)); });
        }
        for (const Sample& sample : samples) {
            if (round >= 0) {
                figures.push_back(sample.us);
            }
        }
    }
    // Even ranks of pairs receive nothing, so the second rank judges.
    const int judge = options_.operation == Operation::kPairs ? 1 : 0;
    figures.insert(figures.end(),
                   {samples[kTimedNative].wire_bytes, samples[kTimedOwn].wire_bytes,
                    static_cast<double>(hash_of(*host, message.recv_bytes) >> 12),
                    rank_ == judge ? delivery.relative_error(*host, message.count) : 0,
                    samples[kTimedNative].between_nodes, samples[kTimedOwn].between_nodes});
    return figures;
}

// `all` has the figures of run_rounds of each rank.
void Worker::print(const Message& message,
                   const Delivery& delivery,
                   const std::vector<double>& all,
                   std::FILE* out) const {
    const size_t stride = all.size() / static_cast<size_t>(ranks_);
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
        identical = identical &&
                    (of_rank[2] == all[kTimedKinds * rounds + 2] || !delivery.alike_on_all_ranks());
        error = std::max(error, of_rank[3]);
        between_nodes[0] += of_rank[4];
        between_nodes[1] += of_rank[5];
    }
    // The average of those that send.
    const int senders = options_.operation == Operation::kPairs ? ranks_ / 2 : ranks_;
    std::fprintf(out,
                 "{\"bytes\":%zu,\"count\":%zu,\"ranks\":%d,\"calls\":%d,\"counted\":%s,"
                 "\"native_wire_bytes\":%.1f,\"wire_bytes\":%.1f,\"identical\":%s,"
                 "\"native_between_nodes_bytes\":%.0f,\"between_nodes_bytes\":%.0f,"
                 "\"rel_error\":%.9g,\"native_us\":[%s],\"time_us\":[%s],\"raw_us\":[%s]}\n",
                 std::max(message.send_bytes, message.recv_bytes), message.count, ranks_,
                 options_.warmup + options_.rounds, counters_ != nullptr ? "true" : "false",
                 sent[0] / senders, sent[1] / senders, identical ? "true" : "false",
                 between_nodes[0], between_nodes[1], error, lists[kTimedNative].c_str(),
                 lists[kTimedOwn].c_str(), lists[kTimedRaw].c_str());
    std::fflush(out);
}

void Worker::measure(size_t bytes, std::FILE* out) {
    const size_t elem = element_bytes(options_.type);
    Message message;
    message.count = std::max<size_t>(1, bytes / elem);
    const Delivery delivery{options_, rank_, ranks_};
    if (delivery.input_elems(1) > 1 || delivery.output_elems(1) > 1) {
        message.count = std::max<size_t>(1, message.count / static_cast<size_t>(ranks_));
    }
    message.send_bytes = delivery.input_elems(message.count) * elem;
    message.recv_bytes = delivery.output_elems(message.count) * elem;
    // Either is the other's size in the raw exchange.
    const size_t larger = std::max(message.send_bytes, message.recv_bytes);
    const size_t room = larger + 4096 * static_cast<size_t>(ranks_);
    check(cudaMalloc(&send_, room), "cudaMalloc");
    check(cudaMalloc(&recv_, room), "cudaMalloc");
    std::vector<char> host(larger);
    for (size_t i = 0; i < delivery.input_elems(message.count); ++i) {
        store(options_.type, host.data(), i, gaussian(options_.seed, rank_, i));
    }
    const std::vector<double> all = gather(run_rounds(message, delivery, &host));
    check(cudaFree(send_), "cudaFree");
    check(cudaFree(recv_), "cudaFree");
    if (rank_ == 0) {
        print(message, delivery, all, out);
    }
}

}  // namespace
}  // namespace slimwire::bench

int main(int argc, char** argv) {
    using namespace slimwire::bench;
    try {
        Worker(parse_options(argc, argv)).run();
    } catch (const demo::TrainError& error) {
        stop(std::string(error.what()) +
             "; start this on every rank, or add --ranks to measure emulated ones");
    }
    return 0;
}
