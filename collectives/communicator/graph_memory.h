// Compressed calls under stream capture (DESIGN 3.8). A captured call becomes nodes of the
// program's graph, so what it works with must live as long as the graph: the scratch that its
// communicator has reserved, or its own where it has no room there, retained on the graph as a user
// object.
//
// Called on the thread that captures, inside a DeviceScope (which lets it allocate).
#pragma once

#include <cstdint>
#include <memory>

#include "codecs/base/device.h"
#include "collectives/communicator/device_memory.h"

namespace slimwire {

// The capture that a stream takes part in.
struct StreamCapture {
    bool active = false;
    unsigned long long id = 0;  // of the capture; unique in the process
    cudaGraph_t graph = nullptr;
};
inline Result<StreamCapture> capture_of(const DeviceApi& api, cudaStream_t stream) {
    StreamCapture capture;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIMWIRE_TRY(cuda_status(api,
                             api.stream_get_capture_info(stream, &status, &capture.id,
                                                         &capture.graph, nullptr, nullptr, nullptr),
                             "capture of the stream"));
    if (status == cudaStreamCaptureStatusInvalidated) {
        return Status(Code::kCudaError, "the capture of the stream is already invalid");
    }
    capture.active = status == cudaStreamCaptureStatusActive;
    return capture;
}
// Whether there is one, valid or not.
inline Result<bool> capturing(const DeviceApi& api, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIMWIRE_TRY(
        cuda_status(api, api.stream_is_capturing(stream, &status), "capture of the stream"));
    return status != cudaStreamCaptureStatusNone;
}

// `held` lives as long as the graph that is being captured, and what is made of it; given up where
// no CUDA call is allowed.
Status keep_with_graph(const DeviceApi& api, cudaGraph_t graph, std::shared_ptr<void> held);

struct Communicator;

// Device memory owned by graphs. One a process. The driver says on a thread of its own that a graph
// is gone, where no CUDA call is allowed: the next captured call of that device, or the end of a
// communicator there, frees what it left. Thread-safe.
class GraphMemory {
  public:
    // `budget` counts what graphs hold and have left; both outlive this.
    GraphMemory(MemoryBudget* budget, DeviceMemory* memory);
    // `bytes` of memory on the current device that live as long as `graph` and what is made of it.
    Result<void*> allocate(const DeviceApi& api, cudaGraph_t graph, int device, uint64_t bytes);
    // The communicator's reserve lives as long as the communicator, `graph` and what is made of it.
    Status keep_reserve(const DeviceApi& api, cudaGraph_t graph, Communicator* state);
    // Frees what graphs have left on `device`; negative: on all.
    void free_returned(const DeviceApi& api, int device);

  private:
    struct Block;
    struct Returned;
    // Returned once nobody holds it any more.
    [[nodiscard]] std::shared_ptr<void> hold(const Block& block);
    Returned* returned_;  // never destroyed: graphs may outlive every other object
    MemoryBudget* budget_;
    DeviceMemory* memory_;
};

}  // namespace slimwire
