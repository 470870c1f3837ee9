// Exported functions that move data: their argument checks, and nothing else.
#include <array>
#include <string>

#include "tools/emulator/nccl/api/api.h"
#include "tools/emulator/nccl/execution/group.h"

namespace slimwire::emu {
namespace {

// One call before its arguments are checked.
struct Call {
    const char* name;
    TaskKind kind;
    const void* send;
    void* recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    int root = 0;
    ncclComm_t comm;
    cudaStream_t stream;
};

constexpr bool reduces(TaskKind kind) {
    return kind == TaskKind::kAllReduce || kind == TaskKind::kReduce ||
           kind == TaskKind::kReduceScatter;
}

Status invalid(const Call& call, const std::string& text) {
    return {Code::kInvalidArgument, std::string(call.name) + ": " + text};
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
    SLIMWIRE_TRY_ASSIGN(const auto comm, find_communicator(call.comm, call.name));
    SLIMWIRE_TRY(comm->error());
    if (comm->finalized()) {
        return {Code::kInvalidUsage, std::string(call.name) + ": the communicator was finalized"};
    }
    if (comm->revoked()) {
        return {Code::kInvalidUsage, std::string(call.name) + ": the communicator was revoked"};
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
        SLIMWIRE_TRY_ASSIGN(task.reduction, comm->resolve(call.op, task.type));
    }
    SLIMWIRE_TRY(check_buffers(call, *comm));
    if (call.count == 0 && !is_point_to_point(call.kind)) {
        return {};
    }
    return enqueue(comm, task, call.stream, call.name);
}

ncclResult_t submit(const Call& call) noexcept {
    return guarded([&] { return group_error(submit_checked(call)); }, call.name);
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
            const auto comm = find_communicator(call.comm, call.name);
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
        call.name);
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

}  // namespace
}  // namespace slimwire::emu

using slimwire::emu::submit;
using slimwire::emu::TaskKind;

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclAllReduce,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      ncclRedOp_t op,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclAllReduce",
                   .kind = TaskKind::kAllReduce,
                   .send = sendbuff,
                   .recv = recvbuff,
                   .count = count,
                   .type = datatype,
                   .op = op,
                   .comm = comm,
                   .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclReduce,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      ncclRedOp_t op,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclReduce",
                   .kind = TaskKind::kReduce,
                   .send = sendbuff,
                   .recv = recvbuff,
                   .count = count,
                   .type = datatype,
                   .op = op,
                   .root = root,
                   .comm = comm,
                   .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclReduceScatter,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t recvcount,
                      ncclDataType_t datatype,
                      ncclRedOp_t op,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclReduceScatter",
                   .kind = TaskKind::kReduceScatter,
                   .send = sendbuff,
                   .recv = recvbuff,
                   .count = recvcount,
                   .type = datatype,
                   .op = op,
                   .comm = comm,
                   .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclAllGather,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t sendcount,
                      ncclDataType_t datatype,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclAllGather",
                   .kind = TaskKind::kAllGather,
                   .send = sendbuff,
                   .recv = recvbuff,
                   .count = sendcount,
                   .type = datatype,
                   .comm = comm,
                   .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclAlltoAll,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return slimwire::emu::all_to_all({.name = "ncclAlltoAll",
                                      .kind = TaskKind::kSend,
                                      .send = sendbuff,
                                      .recv = recvbuff,
                                      .count = count,
                                      .type = datatype,
                                      .comm = comm,
                                      .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclBroadcast,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclBroadcast",
                   .kind = TaskKind::kBroadcast,
                   .send = sendbuff,
                   .recv = recvbuff,
                   .count = count,
                   .type = datatype,
                   .root = root,
                   .comm = comm,
                   .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclGather,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return slimwire::emu::gather({.name = "ncclGather",
                                  .kind = TaskKind::kSend,
                                  .send = sendbuff,
                                  .recv = recvbuff,
                                  .count = count,
                                  .type = datatype,
                                  .root = root,
                                  .comm = comm,
                                  .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclScatter,
                     (const void* sendbuff,
                      void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return slimwire::emu::scatter({.name = "ncclScatter",
                                   .kind = TaskKind::kSend,
                                   .send = sendbuff,
                                   .recv = recvbuff,
                                   .count = count,
                                   .type = datatype,
                                   .root = root,
                                   .comm = comm,
                                   .stream = stream});
}

// The real library calls its own exported ncclBroadcast here, interposers included.
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclBcast,
                     (void* buff,
                      size_t count,
                      ncclDataType_t datatype,
                      int root,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclSend,
                     (const void* sendbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclSend",
                   .kind = TaskKind::kSend,
                   .send = sendbuff,
                   .recv = nullptr,
                   .count = count,
                   .type = datatype,
                   .root = peer,
                   .comm = comm,
                   .stream = stream});
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclRecv,
                     (void* recvbuff,
                      size_t count,
                      ncclDataType_t datatype,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream)) {
    return submit({.name = "ncclRecv",
                   .kind = TaskKind::kRecv,
                   .send = nullptr,
                   .recv = recvbuff,
                   .count = count,
                   .type = datatype,
                   .root = peer,
                   .comm = comm,
                   .stream = stream});
}
