// The data that flows through this room: one NCCL call as plain values, and the part of it that all
// ranks share. Built on the caller's stack by plugin/preload; nothing here owns memory.
#pragma once

#include <nccl.h>

#include <cstdint>

#include "codecs/base/dtype.h"
#include "topology/machine/scope.h"

namespace slimwire {

// Operations that move payload. Order is used in tables; append only.
enum class Op : uint8_t {
    kAllReduce,
    kReduceScatter,
    kReduce,
    kAllGather,
    kBroadcast,
    kAllToAll,
    kGather,
    kScatter,
    kSend,
    kRecv,
};
inline constexpr int kOpCount = 10;

// Whether the operation sums over ranks.
[[nodiscard]] constexpr bool reduces(Op op) noexcept {
    return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}
[[nodiscard]] constexpr bool is_point_to_point(Op op) noexcept {
    return op == Op::kSend || op == Op::kRecv;
}

// NCCL's spelling in policies and reports: "allreduce", "reducescatter", "alltoall", ...
[[nodiscard]] const char* op_name(Op op) noexcept;

// Reduction as slimwire sees it; user-made pre-multiplied sums are one kind.
enum class RedOp : uint8_t { kSum, kProd, kMax, kMin, kAvg, kPreMulSum, kNone };
inline constexpr int kRedOpCount = 7;
[[nodiscard]] const char* redop_name(RedOp redop) noexcept;  // "sum", ..., "premulsum", "none"

// What a program does with a sum of all ranks once it came: nothing; it divides it by their number;
// or, as FSDP1 does, by what it did not divide contributions by.
enum class SumUse : uint8_t { kWhole, kMean, kFsdp };

// Where a message between two stages of a pipeline goes: activations forward, gradients backward.
enum class Direction : uint8_t { kUnknown, kForward, kBackward };
[[nodiscard]] const char* direction_name(
    Direction direction) noexcept;  // "unknown", "forward", ...

// Facts of a call that are equal on all ranks of a communicator: the only input of a plan.
struct CallSignature {
    Op op = Op::kAllReduce;
    DType dtype = DType::kFloat32;
    RedOp redop = RedOp::kNone;
    int32_t root_or_peer = 0;  // root of a rooted collective; 0 elsewhere
    uint64_t count = 0;        // NCCL's count argument (elements)
    // Which parameters it carries (parameter_ranges.h), as the communicator numbers such lists; 0:
    // not known.
    uint32_t ranges_id = 0;
    // 1 + the least of the ordinals in the step that rules take as this call's, itself one of them;
    // 0: not known, or no rule asks (Plan::ordinals). Only calls of other kinds come in between.
    uint32_t ordinal = 0;
    // Of messages: unknown also where no rule asks (Plan::pairs).
    Direction direction = Direction::kUnknown;
    uint32_t row = 0;  // of messages: elements of a row, where that was told (message_rows.h)
    bool operator==(const CallSignature&) const = default;
};

// One call as the program made it.
struct CollectiveCall {
    CallSignature signature;
    const void* send = nullptr;
    void* recv = nullptr;
    ncclDataType_t nccl_dtype = ncclFloat32;
    ncclRedOp_t nccl_op = ncclSum;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t launched = nullptr;  // the program's, recorded when work of the call begins
};

}  // namespace slimwire
