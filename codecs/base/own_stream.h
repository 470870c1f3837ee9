// Device work of the host's own between the calls of a program.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"

namespace slimwire {

// Enqueues work(stream), which returns a Status, on a stream that no capture and no other work
// knows, and waits for it. On the current device; `what` is for errors.
template <class Work>
Status on_own_stream(const DeviceApi& api, const char* what, const Work& work) {
    cudaStream_t stream = nullptr;
    SLIMWIRE_TRY(
        cuda_status(api, api.stream_create_with_flags(&stream, cudaStreamNonBlocking), what));
    Status status = work(stream);
    if (status.ok()) {
        status = cuda_status(api, api.stream_synchronize(stream), what);
    }
    tolerate(api, api.stream_destroy(stream));
    return status;
}

}  // namespace slimwire
