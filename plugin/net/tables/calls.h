// What all table versions share: NCCL's calls on opaque pointers, with the newest tables'
// parameters, turned into calls of the engine (engine.h). Here, and only here, a Status becomes an
// ncclResult_t: each failure is logged once, with its text, and no exception leaves. tables.cpp
// fits their parameters to those of each version.
//
// Pointers that NCCL keeps: a context is a Session, a listen comm a ListenComm, a send or receive
// comm a Comm, a request a slot of its comm's table, a memory handle a Memory. A comm and a
// listener keep their session alive, so NCCL may finalize in any order.
//
// Thread contract: as ncclNet's (engine.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net.h"
#include "plugin/net/engine.h"

namespace slimwire::net::tables {

inline constexpr char kPluginName[] = "slimwire";

// Opens the process's engine and one use of it. `*context` is null after a failure.
ncclResult_t init(void** context,
                  uint64_t comm_id,
                  NetCommConfigV11* config,
                  DebugLogger log,
                  ProfilerCallback profiler) noexcept;
// Null is fine: NCCL finalizes what failed to start, too.
ncclResult_t finalize(void* context) noexcept;
// Before version 11 init is called once and there is no context: the same for the process, kept.
ncclResult_t init_process(DebugLogger log) noexcept;
// The context of `traffic_class` for tables that have none, made when it is first asked for.
ncclResult_t process_context(int traffic_class, void** context) noexcept;

ncclResult_t devices(int* count) noexcept;
// Null when there is no such device, which is logged.
const WireDevice* device_properties(int device) noexcept;

ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) noexcept;
ncclResult_t connect(
    void* context, int device, void* handle, void** send_comm, NetDeviceHandle** offload) noexcept;
ncclResult_t accept(void* listen_comm, void** recv_comm, NetDeviceHandle** offload) noexcept;
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
                   size_t* bytes,
                   int* tags,
                   void** mhandles,
                   void** phandles,
                   void** request) noexcept;
ncclResult_t iflush(
    void* recv_comm, int count, void** data, int* bytes, void** mhandles, void** request) noexcept;
ncclResult_t test(void* request, int* done, int* bytes) noexcept;
ncclResult_t close_comm(void* comm) noexcept;
ncclResult_t close_listen(void* listen_comm) noexcept;
// Logs `text` and gives `result`: for what a table finds wrong by itself.
ncclResult_t refuse(ncclResult_t result, const char* text) noexcept;
// What NCCL is about to do; messages say enough by themselves.
ncclResult_t set_net_attr(void* context, NetAttrV11* attributes) noexcept;

}  // namespace slimwire::net::tables
