// What a call asks for, after its arguments were checked: plain data, immutable once enqueued (a
// captured graph runs the same task many times). Pointers are device pointers of the client.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/base/dtype.h"
#include "plugin/net/abi/tuner.h"
#include "tools/emulator/nccl/bootstrap/protocol.h"
#include "tools/emulator/nccl/execution/reduce.h"

namespace slimwire::emu {

enum class TaskKind : uint8_t {
    kAllReduce,
    kReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kSend,
    kRecv,
};

struct Reduction {
    ReduceOp op = ReduceOp::kSum;
    PreScale scale;
    const void* scale_pointer = nullptr;  // device memory with the factor, read when the task runs
    int divisor = 1;                      // applied to integers at the end
};

struct Task {
    TaskKind kind;
    const void* send = nullptr;
    void* recv = nullptr;
    size_t count = 0;  // as the call counts
    DType type = DType::kInt8;
    int root = 0;  // or the peer of a send or receive
    Reduction reduction;
    Protocol protocol = Protocol::kSimple;  // between nodes; set when the call is launched

    [[nodiscard]] size_t element_bytes() const noexcept { return dtype_bytes(type); }
    [[nodiscard]] size_t bytes() const noexcept { return count * element_bytes(); }
};

[[nodiscard]] constexpr bool is_point_to_point(TaskKind kind) noexcept {
    return kind == TaskKind::kSend || kind == TaskKind::kRecv;
}

// NCCL's name and number (ncclFunc_t) of a kind.
struct TaskFunction {
    const char* name;
    net::TunedCollective number;
};
[[nodiscard]] constexpr TaskFunction task_function(TaskKind kind) noexcept {
    using net::TunedCollective;
    constexpr TaskFunction kFunctions[] = {
        {"AllReduce", TunedCollective::kAllReduce},
        {"Reduce", TunedCollective::kReduce},
        {"ReduceScatter", TunedCollective::kReduceScatter},
        {"AllGather", TunedCollective::kAllGather},
        {"Broadcast", TunedCollective::kBroadcast},
        {"Send", TunedCollective::kSend},
        {"Recv", TunedCollective::kRecv},
    };
    return kFunctions[static_cast<size_t>(kind)];
}

}  // namespace slimwire::emu
