// The table through which slimwire reaches a device: static cudart, or the emulator's functions
// when the emulator is mapped into the process. One libslimwire.so serves both; only kernels
// differ.
//
// Who fills it: collectives/call/backend.cpp, once, at the first communicator. Who uses it:
// everything that touches streams, events or device memory. All members have the CUDA Runtime's
// meaning and thread rules; none is null after a successful load.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "codecs/base/status.h"

namespace slimwire {

// X(member, cuda function): signatures are taken from the header, never typed twice.
#define SLIMWIRE_DEVICE_FUNCTIONS(X)                             \
    X(get_device, cudaGetDevice)                                 \
    X(set_device, cudaSetDevice)                                 \
    X(get_device_count, cudaGetDeviceCount)                      \
    X(device_get_attribute, cudaDeviceGetAttribute)              \
    X(malloc, cudaMalloc)                                        \
    X(free, cudaFree)                                            \
    X(malloc_from_pool_async, cudaMallocFromPoolAsync)           \
    X(free_async, cudaFreeAsync)                                 \
    X(mem_pool_create, cudaMemPoolCreate)                        \
    X(mem_pool_destroy, cudaMemPoolDestroy)                      \
    X(mem_pool_set_attribute, cudaMemPoolSetAttribute)           \
    X(mem_pool_get_attribute, cudaMemPoolGetAttribute)           \
    X(mem_pool_set_access, cudaMemPoolSetAccess)                 \
    X(mem_pool_trim_to, cudaMemPoolTrimTo)                       \
    X(device_can_access_peer, cudaDeviceCanAccessPeer)           \
    X(mem_get_info, cudaMemGetInfo)                              \
    X(host_alloc, cudaHostAlloc)                                 \
    X(free_host, cudaFreeHost)                                   \
    X(memcpy_async, cudaMemcpyAsync)                             \
    X(memset_async, cudaMemsetAsync)                             \
    X(pointer_get_attributes, cudaPointerGetAttributes)          \
    X(stream_create_with_flags, cudaStreamCreateWithFlags)       \
    X(stream_create_with_priority, cudaStreamCreateWithPriority) \
    X(stream_destroy, cudaStreamDestroy)                         \
    X(stream_synchronize, cudaStreamSynchronize)                 \
    X(stream_query, cudaStreamQuery)                             \
    X(stream_wait_event, cudaStreamWaitEvent)                    \
    X(stream_is_capturing, cudaStreamIsCapturing)                \
    X(stream_get_capture_info, cudaStreamGetCaptureInfo)         \
    X(event_record_with_flags, cudaEventRecordWithFlags)         \
    X(user_object_create, cudaUserObjectCreate)                  \
    X(user_object_release, cudaUserObjectRelease)                \
    X(graph_retain_user_object, cudaGraphRetainUserObject)       \
    X(event_create_with_flags, cudaEventCreateWithFlags)         \
    X(event_record, cudaEventRecord)                             \
    X(event_query, cudaEventQuery)                               \
    X(event_synchronize, cudaEventSynchronize)                   \
    X(event_elapsed_time, cudaEventElapsedTime)                  \
    X(event_destroy, cudaEventDestroy)                           \
    X(launch_host_func, cudaLaunchHostFunc)                      \
    X(func_get_attributes, cudaFuncGetAttributes)                \
    X(get_error_string, cudaGetErrorString)                      \
    X(get_last_error, cudaGetLastError)                          \
    X(peek_at_last_error, cudaPeekAtLastError)                   \
    X(exchange_capture_mode, cudaThreadExchangeStreamCaptureMode)

struct EmulatorApi;

struct DeviceApi {
#define SLIMWIRE_DEVICE_MEMBER(member, function) decltype(&::function) member = nullptr;
    SLIMWIRE_DEVICE_FUNCTIONS(SLIMWIRE_DEVICE_MEMBER)
#undef SLIMWIRE_DEVICE_MEMBER

    // Non-null on the emulator; then device operations run as host bodies on the stream's worker.
    const EmulatorApi* emulator = nullptr;
};

// ok for cudaSuccess; otherwise kCudaError with `what`, the error's name and text, and the sticky
// error cleared.
Status cuda_status(const DeviceApi& api, cudaError_t error, const char* what);

// For calls whose failure changes nothing (clearing up, statistics): the program must not find
// their error in its cudaGetLastError. Returns whether the call succeeded.
bool tolerate(const DeviceApi& api, cudaError_t error);

// How a host body reaches the memory behind a device pointer: the emulator's alias mapping, or the
// pointer itself when no emulator is present (plain host buffers in tests and the net plugin).
// Host bodies call it for every pointer argument; null stays null.
using DeviceViewFunction = void* (*)(const void*);
void set_device_view(DeviceViewFunction view) noexcept;
void* device_view(const void* pointer) noexcept;

template <class T>
T* device_view_as(const void* pointer) noexcept {
    return static_cast<T*>(device_view(pointer));
}

}  // namespace slimwire
