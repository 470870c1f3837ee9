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

// Put into *request of irecv by NCCL when it can go on without knowing that the message has come
// (protocols LL and LL128, whose data carries flags); a request must come back all the same.
inline void* const kOptionalReceiveCompletion = reinterpret_cast<void*>(uintptr_t{1});

}  // namespace slimwire::net
