#include "tools/cli/bench/worker/bench_worker_calls.h"

#include <string>

namespace slimwire::bench {
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

void enqueue(const Calls& call, const Nccl& nccl, size_t count) {
    const ncclDataType_t type = call.type;
    const int next = (call.rank + 1) % call.ranks;
    const int former = (call.rank + call.ranks - 1) % call.ranks;
    switch (call.operation) {
        case Operation::kAllReduce:
            return check(
                nccl.all_reduce(call.send, call.recv, count, type, ncclSum, call.comm, call.stream),
                "ncclAllReduce");
        case Operation::kReduceScatter:
            return check(nccl.reduce_scatter(call.send, call.recv, count, type, ncclSum, call.comm,
                                             call.stream),
                         "ncclReduceScatter");
        case Operation::kAllGather:
            return check(nccl.all_gather(call.send, call.recv, count, type, call.comm, call.stream),
                         "ncclAllGather");
        case Operation::kAllToAll:
            return check(nccl.all_to_all(call.send, call.recv, count, type, call.comm, call.stream),
                         "ncclAlltoAll");
        case Operation::kBroadcast:
            return check(
                nccl.broadcast(call.send, call.recv, count, type, 0, call.comm, call.stream),
                "ncclBroadcast");
        case Operation::kReduce:
            return check(
                nccl.reduce(call.send, call.recv, count, type, ncclSum, 0, call.comm, call.stream),
                "ncclReduce");
        case Operation::kSendRecv:
            check(nccl.group_start(), "ncclGroupStart");
            check(nccl.send(call.send, count, type, next, call.comm, call.stream), "ncclSend");
            check(nccl.recv(call.recv, count, type, former, call.comm, call.stream), "ncclRecv");
            return check(nccl.group_end(), "ncclGroupEnd");
        case Operation::kPairs:
            if (call.rank % 2 == 1) {
                check(nccl.recv(call.recv, count, type, former, call.comm, call.stream),
                      "ncclRecv");
            } else if (next > call.rank) {
                check(nccl.send(call.send, count, type, next, call.comm, call.stream), "ncclSend");
            }
            return;
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
    enqueue(*this, kOwn, count);
}

void Calls::native(size_t count) const {
    enqueue(*this, kNative, count);
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
