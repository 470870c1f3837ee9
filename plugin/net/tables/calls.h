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

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/abi/net.h"
#include "plugin/net/engine.h"
#include "plugin/net/nccl_log.h"

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

// The boundary to NCCL, for the files behind calls.h: what runs there gives a Status, which becomes
// one result and at most one line.

// What NCCL keeps as a context.
struct Session {
    std::shared_ptr<Context> context;
};

[[nodiscard]] ncclResult_t result_of(Code code) noexcept;

// kInvalidArgument with `text` unless `good`.
[[nodiscard]] inline Status ask(bool good, const char* text) {
    return good ? Status() : Status(Code::kInvalidArgument, text);
}

// Runs `call`, which gives a Status; what it throws becomes one.
template <class Call>
Status caught(Call&& call) noexcept {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return {Code::kOutOfMemory, "out of memory"};
    } catch (const std::exception& error) {
        return {Code::kInternalError, error.what()};
    }
}

// A `logged` that is set already keeps the line away: an error stays with its
// connection and comes back at each call.
template <class Call>
ncclResult_t answer(const char* what, bool* logged, Call&& call) noexcept {
    const Status status = caught(call);
    if (!status.ok() && (logged == nullptr || !*logged)) {
        (void)caught([&] {
            nccl_warn(std::string(what) + ": " + status.message());
            return Status();
        });
        if (logged != nullptr) {
            *logged = true;
        }
    }
    return result_of(status.code());
}

}  // namespace slimwire::net::tables
