// What all versions of NCCL's network plugin interface share: our own declarations of its constants
// and callback types.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace slimwire::net {

inline constexpr int kNetHandleBytes = 128;
inline constexpr int kNetMaxRequests = 32;  // in flight for each connection

enum PtrSupport : int { kPtrHost = 1, kPtrCuda = 2, kPtrDmaBuf = 4 };
enum NetDeviceType : int { kNetDeviceHost = 0, kNetDeviceUnpack = 1 };

enum LogLevel : int {
    kLogNone = 0,
    kLogVersion = 1,
    kLogWarn = 2,
    kLogInfo = 3,
    kLogAbort = 4,
    kLogTrace = 5
};

using DebugLogger = void (*)(
    LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);
using ProfilerCallback =
    ncclResult_t (*)(void** event, int type, void* phandle, int64_t plugin_id, void* data);

struct NetDeviceHandle;  // device offload; never used here

// Functions of a table whose parameters are the same in several versions. `Size` is int in version
// 8; the profiler's handles (`phandle`) come with version 10.
using NetDevices = ncclResult_t (*)(int* count);
using NetAccept = ncclResult_t (*)(void* listen_comm,
                                   void** recv_comm,
                                   NetDeviceHandle** device_handle);
using NetRegMr = ncclResult_t (*)(void* comm, void* data, size_t bytes, int type, void** mhandle);
using NetRegMrDmaBuf = ncclResult_t (*)(
    void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd, void** mhandle);
using NetDeregMr = ncclResult_t (*)(void* comm, void* mhandle);
template <class Size>
using NetIsend = ncclResult_t (*)(
    void* send_comm, void* data, Size bytes, int tag, void* mhandle, void** request);
template <class Size>
using NetIrecv = ncclResult_t (*)(void* recv_comm,
                                  int count,
                                  void** data,
                                  Size* bytes,
                                  int* tags,
                                  void** mhandles,
                                  void** request);
using NetIsendProfiled = ncclResult_t (*)(void* send_comm,
                                          void* data,
                                          size_t bytes,
                                          int tag,
                                          void* mhandle,
                                          void* phandle,
                                          void** request);
using NetIrecvProfiled = ncclResult_t (*)(void* recv_comm,
                                          int count,
                                          void** data,
                                          size_t* bytes,
                                          int* tags,
                                          void** mhandles,
                                          void** phandles,
                                          void** request);
using NetIflush = ncclResult_t (*)(
    void* recv_comm, int count, void** data, int* bytes, void** mhandles, void** request);
using NetTest = ncclResult_t (*)(void* request, int* done, int* bytes);
using NetClose = ncclResult_t (*)(void* comm);
using NetGetDeviceMr = ncclResult_t (*)(void* comm, void* mhandle, void** device_mhandle);
using NetIrecvConsumed = ncclResult_t (*)(void* recv_comm, int count, void* request);

// Put into *request of irecv by NCCL when it can go on without knowing that the message has come
// (protocols LL and LL128, whose data carries flags); a request must come back all the same.
inline void* const kOptionalReceiveCompletion = reinterpret_cast<void*>(uintptr_t{1});

}  // namespace slimwire::net
