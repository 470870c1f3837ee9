// What all table versions share: NCCL's calls on opaque pointers, turned into calls of the engine
// (engine.h). Here, and only here, a Status becomes an ncclResult_t: each failure is logged once,
// with its text, and no exception leaves. The tables (net_v8.cpp ... net_v12.cpp) only fit
// parameters.
//
// Pointers that NCCL keeps: a context is a Session, a listen comm a ListenComm, a send or receive
// comm a Comm, a request a slot of its comm's table, a memory handle a Memory. A comm and a
// listener keep their session alive, so NCCL may finalize in any order.
//
// Thread contract: as ncclNet's (engine.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"
#include "plugin/net/engine.h"

namespace slimwire::net::tables {

inline constexpr char kPluginName[] = "slimwire";

// A request carries an int for each size it reports, so no message may be longer.
inline constexpr size_t kMostBytes = size_t{1} << 30;

// Opens the process's engine and one use of it. `*context` is null after a failure.
ncclResult_t init(void** context,
                  uint64_t comm_id,
                  int traffic_class,
                  DebugLogger log,
                  ProfilerCallback profiler) noexcept;
// Null is fine: NCCL finalizes what failed to start, too.
ncclResult_t finalize(void* context) noexcept;
// Before version 11 init is called once and there is no context: the same for the process, kept.
ncclResult_t init_process(DebugLogger log, ProfilerCallback profiler) noexcept;
// The context of `traffic_class` for tables that have none, made when it is first asked for.
ncclResult_t process_context(int traffic_class, void** context) noexcept;

ncclResult_t devices(int* count) noexcept;
// Null when there is no such device, which is logged.
const WireDevice* device_properties(int device) noexcept;

ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) noexcept;
ncclResult_t connect(void* context, int device, void* handle, void** send_comm) noexcept;
ncclResult_t accept(void* listen_comm, void** recv_comm) noexcept;
ncclResult_t reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) noexcept;
ncclResult_t dereg_mr(void* comm, void* mhandle) noexcept;
ncclResult_t isend(void* send_comm,
                   void* data,
                   size_t bytes,
                   int tag,
                   void* mhandle,
                   void* phandle,
                   void** request) noexcept;
ncclResult_t irecv(void* recv_comm,
                   int count,
                   void** data,
                   const size_t* bytes,
                   const int* tags,
                   void** mhandles,
                   void** request) noexcept;
ncclResult_t iflush(void* recv_comm,
                    int count,
                    void** data,
                    const int* bytes,
                    void** mhandles,
                    void** request) noexcept;
ncclResult_t test(void* request, int* done, int* bytes) noexcept;
ncclResult_t close_comm(void* comm) noexcept;
ncclResult_t close_listen(void* listen_comm) noexcept;
// Logs `text` and gives `result`: for what a table finds wrong by itself.
ncclResult_t refuse(ncclResult_t result, const char* text) noexcept;

// The fields that all versions' properties have.
template <class Properties>
ncclResult_t fill_properties(int device, Properties* properties) noexcept {
    const WireDevice* const wire = device_properties(device);
    if (wire == nullptr) {
        return ncclInvalidArgument;
    }
    *properties = {};
    properties->name = const_cast<char*>(wire->name);
    properties->pci_path = const_cast<char*>(wire->pci_path);
    properties->guid = wire->guid;
    properties->ptr_support = kPtrHost | (wire->cuda_memory ? kPtrCuda : 0);
    properties->reg_is_global = 0;  // a Memory belongs to its connection
    properties->speed_mbps = wire->speed_mbps;
    properties->port = wire->port;
    properties->latency_us = wire->latency_us;
    properties->max_comms = wire->max_connections;
    properties->max_recvs = kMaxGroupedReceives;
    properties->device_type = kNetDeviceHost;
    properties->device_version = 0;
    return ncclSuccess;
}

}  // namespace slimwire::net::tables
