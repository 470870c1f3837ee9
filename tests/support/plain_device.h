// A device table over plain memory: no pools, streams and events are null, and work is done when it
// is enqueued.
#pragma once

#include <cstdlib>
#include <cstring>

#include "codecs/base/device.h"

namespace slimwire::test {

inline DeviceApi plain_device() {
    DeviceApi api;
    api.get_device = [](int* device) { return *device = 0, cudaSuccess; };
    api.set_device = [](int) { return cudaSuccess; };
    api.exchange_capture_mode = [](cudaStreamCaptureMode*) { return cudaSuccess; };
    api.device_get_attribute = [](int* value, cudaDeviceAttr, int) {
        return *value = 0, cudaSuccess;
    };
    api.malloc = [](void** out, size_t bytes) { return *out = std::malloc(bytes), cudaSuccess; };
    api.free = [](void* memory) { return std::free(memory), cudaSuccess; };
    api.memset_async = [](void* to, int value, size_t bytes, cudaStream_t) {
        return std::memset(to, value, bytes), cudaSuccess;
    };
    api.memcpy_async = [](void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
        return std::memcpy(to, from, bytes), cudaSuccess;
    };
    api.stream_create_with_flags = [](cudaStream_t* out, unsigned) {
        return *out = nullptr, cudaSuccess;
    };
    api.stream_create_with_priority = [](cudaStream_t* out, unsigned, int) {
        return *out = nullptr, cudaSuccess;
    };
    api.stream_synchronize = [](cudaStream_t) { return cudaSuccess; };
    api.stream_destroy = [](cudaStream_t) { return cudaSuccess; };
    api.stream_wait_event = [](cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; };
    api.stream_is_capturing = [](cudaStream_t, cudaStreamCaptureStatus* status) {
        return *status = cudaStreamCaptureStatusNone, cudaSuccess;
    };
    api.event_create_with_flags = [](cudaEvent_t* out, unsigned) {
        return *out = nullptr, cudaSuccess;
    };
    api.event_destroy = [](cudaEvent_t) { return cudaSuccess; };
    api.event_record = [](cudaEvent_t, cudaStream_t) { return cudaSuccess; };
    api.event_query = [](cudaEvent_t) { return cudaSuccess; };
    api.get_last_error = [] { return cudaSuccess; };
    api.get_error_string = [](cudaError_t) { return "an error"; };
    return api;
}

}  // namespace slimwire::test
