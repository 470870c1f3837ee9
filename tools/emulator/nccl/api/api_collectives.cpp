// Exported functions that move data, made from nccl_api.def: their argument checks, and nothing
// else. Their twins of NCCL 2.31 check the configuration of the call as NCCL does; it is without an
// effect, because the emulator has no channels and one algorithm.
#include <nccl_later.h>

#include <string>

#include "tools/emulator/nccl/api/api.h"
#include "tools/emulator/nccl/execution/group.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

// One call before its arguments are checked; the last columns of nccl_api.def fill the first six.
struct Call {
    const void* send = nullptr;
    void* recv = nullptr;
    size_t count = 0;
    ncclDataType_t type = ncclInt8;
    ncclRedOp_t redop = ncclSum;
    int root = 0;  // or peer
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    const char* function = "";
    TaskKind kind = TaskKind::kSend;
};

constexpr bool reduces(TaskKind kind) {
    return kind == TaskKind::kAllReduce || kind == TaskKind::kReduce ||
           kind == TaskKind::kReduceScatter;
}

Status invalid(const Call& call, const std::string& text) {
    return {Code::kInvalidArgument, std::string(call.function) + ": " + text};
}

// As NCCL: device memory of this rank's device, managed or pinned host memory; not plain host
// memory.
Status check_pointer(const Call& call,
                     const Communicator& comm,
                     const void* pointer,
                     const char* name) {
    cudaPointerAttributes attributes{};
    if (pointer == nullptr || cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess ||
        attributes.devicePointer == nullptr) {
        (void)cudaGetLastError();
        return invalid(call, std::string(name) + " is not a valid device pointer");
    }
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != comm.device()) {
        return invalid(call, std::string(name) + " is allocated on device " +
                                 std::to_string(attributes.device) +
                                 ", the communicator uses device " + std::to_string(comm.device()));
    }
    return {};
}

Status check_buffers(const Call& call, const Communicator& comm) {
    if (call.count == 0) {
        return {};
    }
    const bool root = comm.rank() == call.root;
    const bool reads = call.kind != TaskKind::kRecv && (call.kind != TaskKind::kBroadcast || root);
    const bool writes = call.kind != TaskKind::kSend && (call.kind != TaskKind::kReduce || root);
    if (reads) {
        SLIMWIRE_TRY(check_pointer(call, comm, call.send, "sendbuff"));
    }
    if (writes) {
        SLIMWIRE_TRY(check_pointer(call, comm, call.recv, "recvbuff"));
    }
    return {};
}

Status submit_checked(const Call& call) {
    SLIMWIRE_TRY_ASSIGN(const auto comm, find_communicator(call.comm, call.function));
    SLIMWIRE_TRY(comm->error());
    if (comm->finalized()) {
        return {Code::kInvalidUsage,
                std::string(call.function) + ": the communicator was finalized"};
    }
    if (comm->suspended()) {
        return {Code::kInvalidUsage,
                std::string(call.function) + ": the communicator is suspended"};
    }
    if (comm->revoked()) {
        return {Code::kInvalidUsage, std::string(call.function) + ": the communicator was revoked"};
    }
    const bool rooted = call.kind == TaskKind::kReduce || call.kind == TaskKind::kBroadcast ||
                        is_point_to_point(call.kind);
    if (rooted && (call.root < 0 || call.root >= comm->size())) {
        return invalid(call, "invalid root or peer " + std::to_string(call.root) +
                                 " (should be in the range 0.." + std::to_string(comm->size() - 1) +
                                 ")");
    }
    if (call.type < 0 || call.type >= ncclNumTypes) {
        return invalid(call, "invalid type " + std::to_string(call.type));
    }
    Task task;
    task.kind = call.kind;
    task.send = call.send;
    task.recv = call.recv;
    task.count = call.count;
    task.type = static_cast<DType>(call.type);
    task.root = call.root;
    if (reduces(call.kind)) {
        SLIMWIRE_TRY_ASSIGN(task.reduction, comm->resolve(call.redop, task.type));
    }
    SLIMWIRE_TRY(check_buffers(call, *comm));
    if (call.count == 0 && !is_point_to_point(call.kind)) {
        return {};
    }
    return enqueue(comm, task, call.stream, call.function);
}

template <TaskKind kKind>
ncclResult_t submit_task(Call call) noexcept {
    call.kind = kKind;
    return guarded([&] { return group_error(submit_checked(call)); }, call.function);
}

// Adds one send or receive of a call that consists of many.
Status submit_part(const Call& call, TaskKind kind, int peer, size_t offset) {
    Call part = call;
    part.kind = kind;
    part.root = peer;
    part.send = static_cast<const char*>(call.send) + (kind == TaskKind::kSend ? offset : 0);
    part.recv = static_cast<char*>(call.recv) + (kind == TaskKind::kRecv ? offset : 0);
    return submit_checked(part);
}

// Runs body(communicator, bytes of `count` elements) as one group.
template <class Body>
ncclResult_t submit_parts(const Call& call, Body&& body) noexcept {
    return guarded(
        [&]() -> Status {
            const auto comm = find_communicator(call.comm, call.function);
            SLIMWIRE_TRY(group_error(comm.status()));
            if (call.type < 0 || call.type >= ncclNumTypes) {
                return group_error(invalid(call, "invalid type " + std::to_string(call.type)));
            }
            if (call.root < 0 || call.root >= comm.value()->size()) {
                return group_error(invalid(call, "invalid root " + std::to_string(call.root)));
            }
            if (call.count == 0) {
                return {};
            }
            group_start();
            const Status first = group_error(
                body(*comm.value(), call.count * dtype_bytes(static_cast<DType>(call.type))));
            const Status end = group_end();
            return first.ok() ? end : first;
        },
        call.function);
}

ncclResult_t all_to_all(const Call& call) noexcept {
    return submit_parts(call, [&](const Communicator& comm, size_t stride) -> Status {
        for (int peer = 0; peer < comm.size(); ++peer) {
            const size_t offset = stride * static_cast<size_t>(peer);
            SLIMWIRE_TRY(submit_part(call, TaskKind::kSend, peer, offset));
            SLIMWIRE_TRY(submit_part(call, TaskKind::kRecv, peer, offset));
        }
        return {};
    });
}

ncclResult_t gather(const Call& call) noexcept {
    return submit_parts(call, [&](const Communicator& comm, size_t stride) -> Status {
        SLIMWIRE_TRY(submit_part(call, TaskKind::kSend, call.root, 0));
        for (int peer = 0; comm.rank() == call.root && peer < comm.size(); ++peer) {
            SLIMWIRE_TRY(
                submit_part(call, TaskKind::kRecv, peer, stride * static_cast<size_t>(peer)));
        }
        return {};
    });
}

ncclResult_t scatter(const Call& call) noexcept {
    return submit_parts(call, [&](const Communicator& comm, size_t stride) -> Status {
        for (int peer = 0; comm.rank() == call.root && peer < comm.size(); ++peer) {
            SLIMWIRE_TRY(
                submit_part(call, TaskKind::kSend, peer, stride * static_cast<size_t>(peer)));
        }
        return submit_part(call, TaskKind::kRecv, call.root, 0);
    });
}

// The operations of nccl_api.def.
namespace operations {
constexpr auto kAllReduce = submit_task<TaskKind::kAllReduce>;
constexpr auto kReduceScatter = submit_task<TaskKind::kReduceScatter>;
constexpr auto kReduce = submit_task<TaskKind::kReduce>;
constexpr auto kAllGather = submit_task<TaskKind::kAllGather>;
constexpr auto kBroadcast = submit_task<TaskKind::kBroadcast>;
constexpr auto kAllToAll = all_to_all;
constexpr auto kGather = gather;
constexpr auto kScatter = scatter;
constexpr auto kSend = submit_task<TaskKind::kSend>;
constexpr auto kRecv = submit_task<TaskKind::kRecv>;
}  // namespace operations

// Also records its event, before the launch as NCCL does where CUDA has no event of a launch.
ncclResult_t check_config(const ncclCollConfig_t* config,
                          cudaStream_t stream,
                          const char* function) noexcept {
    return guarded(
        [=]() -> Status {
            if (config == nullptr) {
                return {};
            }
            const ncclCollConfig_t expected = NCCL_COLLCONFIG_INITIALIZER;
            if (config->magic != expected.magic || config->size < sizeof(size_t) * 3) {
                return group_error(
                    {Code::kInvalidArgument,
                     std::string(function) +
                         ": the configuration was not made by NCCL_COLLCONFIG_INITIALIZER"});
            }
            if (config->algSelection != nullptr && config->algSelection[0] != 0 &&
                config->forceAlgSelection != 0) {
                return group_error(
                    {Code::kInvalidArgument, std::string(function) + ": algSelection '" +
                                                 config->algSelection + "' cannot be forced here"});
            }
            if (config->size >= sizeof(*config) && config->launchCompletionEvent != nullptr) {
                return group_error(
                    cuda_check(cudaEventRecord(config->launchCompletionEvent, stream), function));
            }
            return {};
        },
        function);
}

}  // namespace
}  // namespace slimwire::emu

using slimwire::emu::check_config;
namespace operations = slimwire::emu::operations;

#define SLIMWIRE_LIST(...) __VA_ARGS__
#define SLIMWIRE_NCCL_PAYLOAD(name, op, parameters, arguments, payload)                         \
    SLIMWIRE_NCCL_EXPORT(ncclResult_t, nccl##name,                                              \
                         (SLIMWIRE_LIST parameters, ncclComm_t comm, cudaStream_t stream)) {    \
        return operations::k##op(                                                               \
            {SLIMWIRE_LIST payload, .comm = comm, .stream = stream, .function = "nccl" #name}); \
    }
#define SLIMWIRE_NCCL_COLLECTIVE(name, op, parameters, arguments, payload)                  \
    SLIMWIRE_NCCL_PAYLOAD(name, op, parameters, arguments, payload)                         \
    SLIMWIRE_NCCL_EXPORT(ncclResult_t, nccl##name##Config,                                  \
                         (SLIMWIRE_LIST parameters, ncclComm_t comm, cudaStream_t stream,   \
                          const ncclCollConfig_t* config)) {                                \
        const ncclResult_t checked = check_config(config, stream, "nccl" #name "Config");   \
        return checked != ncclSuccess ? checked                                             \
                                      : pnccl##name(SLIMWIRE_LIST arguments, comm, stream); \
    }
// The real library calls its own exported function here, interposers included.
#define SLIMWIRE_NCCL_ALIAS(name, op, parameters, arguments, payload)                          \
    SLIMWIRE_NCCL_EXPORT(ncclResult_t, nccl##name,                                             \
                         (SLIMWIRE_LIST parameters, ncclComm_t comm, cudaStream_t stream)) {   \
        const slimwire::emu::Call call{SLIMWIRE_LIST payload};                                 \
        return nccl##op(call.send, call.recv, call.count, call.type, call.root, comm, stream); \
    }
#include "collectives/call/nccl_api.def"
