#include "tools/cli/bench/worker/bench_worker_calls.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "codecs/float16.h"

namespace slimwire::bench {

namespace {

const std::map<std::string, Operation> kOperations = {
    {"all_reduce", Operation::kAllReduce}, {"reduce_scatter", Operation::kReduceScatter},
    {"all_gather", Operation::kAllGather}, {"all_to_all", Operation::kAllToAll},
    {"broadcast", Operation::kBroadcast},  {"reduce", Operation::kReduce},
    {"send_recv", Operation::kSendRecv},   {"pairs", Operation::kPairs}};

}  // namespace

void stop(const std::string& text) {
    std::fprintf(stderr, "slimwire bench: %s\n", text.c_str());
    std::exit(1);
}

Options parse_options(int argc, char** argv) {
    const std::map<std::string, ncclDataType_t> types = {
        {"f32", ncclFloat32}, {"f16", ncclFloat16}, {"bf16", ncclBfloat16}};
    Options options;
    CLI::App app{"One rank of slimwire bench collective.", "slimwire-bench-worker"};
    app.add_option("--op", options.operation)
        ->required()
        ->transform(CLI::CheckedTransformer(kOperations));
    app.add_option("--dtype", options.type)->transform(CLI::CheckedTransformer(types));
    app.add_option("--bytes", options.bytes)->required()->delimiter(',');
    app.add_option("--port", options.port)->required()->check(CLI::PositiveNumber);
    app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
    app.add_option("--warmup", options.warmup)->check(CLI::PositiveNumber);
    app.add_option("--seed", options.seed);
    app.add_option("--out", options.out);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error) == 0 ? 0 : 1);
    }
    return options;
}

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

float gaussian(uint64_t seed, int rank, size_t index) {
    const uint64_t pair = mix(mix(seed * 1000003 + static_cast<uint64_t>(rank)) + index / 2);
    // Box and Muller; the radius is never log(0).
    const float u = (static_cast<float>(pair >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(pair & 0xffffff) * (6.2831853f * 0x1p-24f);
    const float radius = std::sqrt(-2.0f * std::log(u));
    return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

size_t element_bytes(ncclDataType_t type) {
    return type == ncclFloat32 ? 4 : 2;
}

void store(ncclDataType_t type, void* buffer, size_t index, float value) {
    if (type == ncclFloat32) {
        static_cast<float*>(buffer)[index] = value;
    } else {
        static_cast<uint16_t*>(buffer)[index] =
            type == ncclFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
    }
}

float load(ncclDataType_t type, const void* buffer, size_t index) {
    if (type == ncclFloat32) {
        return static_cast<const float*>(buffer)[index];
    }
    const uint16_t bits = static_cast<const uint16_t*>(buffer)[index];
    return type == ncclFloat16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}

float rounded(ncclDataType_t type, float value) {
    if (type == ncclFloat32) {
        return value;
    }
    uint16_t half = 0;
    store(type, &half, 0, value);
    return load(type, &half, 0);
}

namespace {

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

ncclResult_t enqueue(const Calls& call, const Nccl& nccl, size_t count) {
    const auto& [operation, type, rank, ranks, comm, stream, send, recv] = call;
    const int next = (rank + 1) % ranks;
    const int former = (rank + ranks - 1) % ranks;
    switch (operation) {
        case Operation::kAllReduce:
            return nccl.all_reduce(send, recv, count, type, ncclSum, comm, stream);
        case Operation::kReduceScatter:
            return nccl.reduce_scatter(send, recv, count, type, ncclSum, comm, stream);
        case Operation::kAllGather:
            return nccl.all_gather(send, recv, count, type, comm, stream);
        case Operation::kAllToAll:
            return nccl.all_to_all(send, recv, count, type, comm, stream);
        case Operation::kBroadcast:
            return nccl.broadcast(send, recv, count, type, 0, comm, stream);
        case Operation::kReduce:
            return nccl.reduce(send, recv, count, type, ncclSum, 0, comm, stream);
        case Operation::kSendRecv:
            check(nccl.group_start(), "ncclGroupStart");
            check(nccl.send(send, count, type, next, comm, stream), "ncclSend");
            check(nccl.recv(recv, count, type, former, comm, stream), "ncclRecv");
            return nccl.group_end();
        case Operation::kPairs:
            if (rank % 2 == 1) {
                return nccl.recv(recv, count, type, former, comm, stream);
            }
            return next > rank ? nccl.send(send, count, type, next, comm, stream) : ncclSuccess;
    }
    return ncclInvalidArgument;
}

void check_call(ncclResult_t result, Operation of) {
    if (result != ncclSuccess) {
        const auto found = std::find_if(kOperations.begin(), kOperations.end(),
                                        [&](const auto& known) { return known.second == of; });
        check(result, found->first.c_str());
    }
}

}  // namespace

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

void Calls::own(size_t count) const {
    check_call(enqueue(*this, kOwn, count), operation);
}

void Calls::native(size_t count) const {
    check_call(enqueue(*this, kNative, count), operation);
}

void Calls::raw(size_t wire_bytes) const {
    const auto others = static_cast<size_t>(ranks - 1);
    Calls plain = *this;
    plain.type = ncclUint8;
    const auto move = [&](Operation by, size_t count) {
        plain.operation = by;
        plain.native(count);
    };
    switch (operation) {
        case Operation::kAllReduce:
            move(Operation::kAllToAll, wire_bytes / 2 / others);
            return move(Operation::kAllGather, wire_bytes / 2 / others);
        case Operation::kReduceScatter:
        case Operation::kAllToAll:
            return move(Operation::kAllToAll, wire_bytes / others);
        case Operation::kAllGather:
            return move(Operation::kAllGather, wire_bytes / others);
        case Operation::kReduce: {
            // The root sends N-1 slots, the others N.
            const size_t slot = wire_bytes / static_cast<size_t>(ranks);
            move(Operation::kAllToAll, slot);
            return check(pncclGather(send, recv, slot, ncclUint8, 0, comm, stream), "ncclGather");
        }
        case Operation::kBroadcast:
        case Operation::kSendRecv:
        case Operation::kPairs:
            return move(operation, wire_bytes);
    }
}

}  // namespace slimwire::bench
