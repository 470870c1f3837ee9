// Stream capture: while a stream is captured its operations become nodes of a graph. A capture
// starts on one stream and spreads to every stream that waits for an event recorded in it; each of
// these streams has the set of nodes that its next operation will depend on. At the end all of them
// must have been joined to the first one.
//
// A call that a capture cannot tolerate fails and makes the capture invalid: from then on its
// streams and events only return errors, until cudaStreamEndCapture, which returns no graph. Which
// calls those are depends on the mode of the capture and of the calling thread; see forbid_unsafe.
//
// Thread contract: everything from any thread. With no capture in the process, what is asked on the
// path of ordinary calls is one atomic load. Source: the CUDA Runtime's rules for stream capture.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tools/emulator/cudart/machine/graph.h"

namespace slimwire::emulator {

class Capture {
  public:
    // One stream of a capture.
    struct Member {
        std::shared_ptr<Stream> stream;
        std::vector<NodeRef> dependencies;  // of the stream's next operation
        // What cudaStreamGetCaptureInfo points to.
        std::vector<cudaGraphNode_t> reported;
        std::vector<cudaGraphEdgeData> reported_edges;
    };
    uint64_t id = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;  // that began it
    const Stream* origin = nullptr;
    std::shared_ptr<Graph> graph;
    cudaGraph_t graph_handle = nullptr;
    bool invalid = false;
    std::map<const Stream*, Member> members;
};

class CaptureTable {
  public:
    // Calling thread's mode, for cudaThreadExchangeStreamCaptureMode.
    static cudaStreamCaptureMode& thread_mode();

    // Into an empty graph.
    cudaError_t begin(Stream& stream,
                      cudaStreamCaptureMode mode,
                      std::shared_ptr<Graph> graph,
                      cudaGraph_t handle);
    // Takes all its streams out of the capture, also when it returns an error. `*graph` is then
    // null; otherwise the handle of the captured graph. `*dropped` is a graph nobody will get.
    cudaError_t end(Stream& stream, cudaGraph_t* graph, cudaGraph_t* dropped);

    struct Info {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        uint64_t id = 0;
        cudaGraph_t graph = nullptr;
        const cudaGraphNode_t* dependencies = nullptr;
        const cudaGraphEdgeData* edges = nullptr;
        size_t dependency_count = 0;
    };
    cudaError_t info(Stream& stream, Info* out);
    cudaError_t update_dependencies(Stream& stream,
                                    const std::vector<NodeRef>& nodes,
                                    bool replace);

    // Adds an operation of a capturing stream as a node, or those of a graph that is launched.
    cudaError_t add(Stream& stream, NodeWork work);
    cudaError_t append(Stream& stream, const Graph& launched);
    cudaError_t record(Stream& stream, Event& event);
    // A wait for an event that was recorded in a capture, or by a stream that is captured.
    cudaError_t wait(Stream& stream, const std::shared_ptr<const CapturedRecording>& captured);

    // An operation of `stream` is about to be enqueued: refuses the legacy stream beside a captured
    // blocking stream of its device, and streams whose capture is invalid.
    cudaError_t admit(Stream& stream) { return none() ? cudaSuccess : admit_slow(stream); }
    // A query or synchronisation of `stream`, which a capture cannot answer.
    cudaError_t forbid_captured(Stream& stream);
    // The same for a device.
    cudaError_t forbid_captured(const Device& device);
    // The same for an event.
    cudaError_t forbid_captured(const Event& event);
    // Calls that a capture would not observe, such as cudaMalloc: refused when the calling thread
    // runs a capture that is not relaxed, or any other thread runs a global one, unless the calling
    // thread's mode says otherwise.
    cudaError_t forbid_unsafe() { return none() ? cudaSuccess : forbid_unsafe_slow(); }
    // A call that no capture takes.
    cudaError_t refuse(Stream& stream);

  private:
    [[nodiscard]] bool none() const { return active_.load(std::memory_order_acquire) == 0; }
    cudaError_t admit_slow(Stream& stream);
    cudaError_t forbid_unsafe_slow();
    std::shared_ptr<Capture> find(const Stream& stream) const;
    // The error of a call on `stream` where it is not, or no longer validly, captured.
    cudaError_t find_valid(const Stream& stream, std::shared_ptr<Capture>* out) const;
    // Makes captures invalid that have a blocking stream on `device`; false when there is none.
    bool conflicts(const Device& device, bool only_blocking, bool invalidate);

    std::mutex mutex_;
    std::atomic<size_t> active_{0};
    uint64_t last_id_ = 0;
    std::unordered_map<const Stream*, std::shared_ptr<Capture>> by_stream_;
    std::vector<std::shared_ptr<Capture>> captures_;
};

}  // namespace slimwire::emulator
