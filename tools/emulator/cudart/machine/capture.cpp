#include "tools/emulator/cudart/machine/capture.h"

#include <algorithm>
#include <utility>

#include "tools/emulator/cudart/machine/runtime.h"

namespace slimwire::emulator {
namespace {

void add_missing(std::vector<NodeRef>* nodes, const NodeRef& node) {
    if (std::find(nodes->begin(), nodes->end(), node) == nodes->end()) {
        nodes->push_back(node);
    }
}

// Work of the other streams that the first one does not wait for.
bool has_unjoined_work(const Capture& capture) {
    const std::vector<NodeRef>& joined = capture.members.at(capture.origin).dependencies;
    for (const auto& [stream, member] : capture.members) {
        for (const NodeRef& node : member.dependencies) {
            if (!reachable(joined, node.get())) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace

cudaStreamCaptureMode& CaptureTable::thread_mode() {
    static thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    return mode;
}

std::shared_ptr<Capture> CaptureTable::find(const Stream& stream) const {
    const auto found = by_stream_.find(&stream);
    return found == by_stream_.end() ? nullptr : found->second;
}

cudaError_t CaptureTable::find_valid(const Stream& stream, std::shared_ptr<Capture>* out) const {
    *out = find(stream);
    return *out == nullptr   ? cudaErrorIllegalState  // it may have ended on another thread
           : (*out)->invalid ? cudaErrorStreamCaptureInvalidated
                             : cudaSuccess;
}

bool CaptureTable::conflicts(const Device& device, bool only_blocking, bool invalidate) {
    bool any = false;
    for (const std::shared_ptr<Capture>& capture : captures_) {
        for (const auto& [stream, member] : capture->members) {
            if (&stream->device() == &device &&
                (!only_blocking || stream->kind() == Stream::Kind::kBlocking)) {
                any = true;
                capture->invalid = capture->invalid || invalidate;
            }
        }
    }
    return any;
}

cudaError_t CaptureTable::begin(Stream& stream,
                                cudaStreamCaptureMode mode,
                                std::shared_ptr<Graph> graph,
                                cudaGraph_t handle) {
    const std::lock_guard lock(mutex_);
    if (stream.kind() == Stream::Kind::kLegacy) {
        return cudaErrorStreamCaptureUnsupported;
    }
    if (find(stream) != nullptr) {
        return cudaErrorIllegalState;
    }
    auto capture = std::make_shared<Capture>();
    capture->id = ++last_id_;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = &stream;
    capture->graph = std::move(graph);
    capture->graph_handle = handle;
    capture->graph->capturing = true;
    capture->members[&stream] = {stream.shared_from_this(), {}, {}, {}};
    by_stream_[&stream] = capture;
    captures_.push_back(std::move(capture));
    active_.fetch_add(1, std::memory_order_acq_rel);
    stream.set_capturing(true);
    return cudaSuccess;
}

cudaError_t CaptureTable::end(Stream& stream, cudaGraph_t* graph, cudaGraph_t* dropped) {
    *graph = nullptr;
    *dropped = nullptr;
    std::shared_ptr<Capture> capture;  // dies after the lock
    const std::lock_guard lock(mutex_);
    capture = find(stream);
    if (capture == nullptr) {
        return cudaErrorIllegalState;
    }
    if (capture->origin != &stream) {
        capture->invalid = true;
        return cudaErrorStreamCaptureUnmatched;
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id()) {
        return cudaErrorStreamCaptureWrongThread;
    }
    cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (error == cudaSuccess && has_unjoined_work(*capture)) {
        error = cudaErrorStreamCaptureUnjoined;
    }
    for (const auto& [member, state] : capture->members) {
        state.stream->set_capturing(false);
        by_stream_.erase(member);
    }
    std::erase(captures_, capture);
    active_.fetch_sub(1, std::memory_order_acq_rel);
    capture->graph->capturing = false;
    (error == cudaSuccess ? *graph : *dropped) = capture->graph_handle;
    return error;
}

cudaError_t CaptureTable::info(Stream& stream, Info* out) {
    *out = {};
    if (none()) {
        return cudaSuccess;
    }
    const std::lock_guard lock(mutex_);
    if (stream.kind() == Stream::Kind::kLegacy && conflicts(stream.device(), true, false)) {
        return cudaErrorStreamCaptureImplicit;
    }
    const std::shared_ptr<Capture> capture = find(stream);
    if (capture == nullptr) {
        return cudaSuccess;
    }
    out->status =
        capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    out->id = capture->id;
    if (!capture->invalid) {
        Capture::Member& member = capture->members.at(&stream);
        member.reported.clear();
        for (const NodeRef& node : member.dependencies) {
            member.reported.push_back(node->handle);
        }
        member.reported_edges.assign(member.reported.size(), cudaGraphEdgeData{});
        out->graph = capture->graph_handle;
        out->dependencies = member.reported.data();
        out->edges = member.reported_edges.data();
        out->dependency_count = member.reported.size();
    }
    return cudaSuccess;
}

cudaError_t CaptureTable::update_dependencies(Stream& stream,
                                              const std::vector<NodeRef>& nodes,
                                              bool replace) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Capture> capture;
    SLIMWIRE_EMU_TRY(find_valid(stream, &capture));
    for (const NodeRef& node : nodes) {
        if (node->graph != capture->graph.get()) {
            return cudaErrorInvalidValue;
        }
    }
    std::vector<NodeRef>& dependencies = capture->members.at(&stream).dependencies;
    if (replace) {
        dependencies.clear();
    }
    for (const NodeRef& node : nodes) {
        add_missing(&dependencies, node);
    }
    return cudaSuccess;
}

cudaError_t CaptureTable::add(Stream& stream, NodeWork work) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Capture> capture;
    SLIMWIRE_EMU_TRY(find_valid(stream, &capture));
    std::vector<NodeRef>& dependencies = capture->members.at(&stream).dependencies;
    work.device = &stream.device();
    const NodeRef node = capture->graph->add(std::move(work), dependencies);
    dependencies.assign(1, node);
    return cudaSuccess;
}

cudaError_t CaptureTable::append(Stream& stream, const Graph& launched) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Capture> capture;
    SLIMWIRE_EMU_TRY(find_valid(stream, &capture));
    std::vector<NodeRef>& dependencies = capture->members.at(&stream).dependencies;
    dependencies = capture->graph->append(launched, dependencies);
    return cudaSuccess;
}

cudaError_t CaptureTable::record(Stream& stream, Event& event) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Capture> capture;
    SLIMWIRE_EMU_TRY(find_valid(stream, &capture));
    const std::vector<NodeRef>& dependencies = capture->members.at(&stream).dependencies;
    event.set_captured(std::make_shared<CapturedRecording>(
        CapturedRecording{capture, {dependencies.begin(), dependencies.end()}}));
    return cudaSuccess;
}

cudaError_t CaptureTable::wait(Stream& stream,
                               const std::shared_ptr<const CapturedRecording>& captured) {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Capture> own = find(stream);
    const std::shared_ptr<Capture> theirs =
        captured == nullptr ? nullptr : captured->capture.lock();
    const bool theirs_ended =
        theirs == nullptr || std::count(captures_.begin(), captures_.end(), theirs) == 0;
    if (own == nullptr && theirs_ended) {
        return cudaErrorCapturedEvent;
    }
    if (own != nullptr && own->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (theirs_ended) {  // recorded outside of this stream's capture
        own->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (theirs->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (own != nullptr && own != theirs) {
        own->invalid = true;
        theirs->invalid = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (own == nullptr && stream.kind() == Stream::Kind::kLegacy) {
        theirs->invalid = true;
        return cudaErrorStreamCaptureImplicit;
    }
    if (own == nullptr) {
        theirs->members[&stream].stream = stream.shared_from_this();
        by_stream_[&stream] = theirs;
        stream.set_capturing(true);
    }
    std::vector<NodeRef>& dependencies = theirs->members.at(&stream).dependencies;
    for (const std::weak_ptr<GraphNode>& weak : captured->nodes) {
        if (const NodeRef node = weak.lock()) {
            add_missing(&dependencies, node);
        }
    }
    return cudaSuccess;
}

cudaError_t CaptureTable::admit_slow(Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (stream.kind() == Stream::Kind::kLegacy && conflicts(stream.device(), true, true)) {
        return cudaErrorStreamCaptureImplicit;
    }
    const std::shared_ptr<Capture> capture = find(stream);
    return capture != nullptr && capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t CaptureTable::forbid_captured(Stream& stream) {
    if (none()) {
        return cudaSuccess;
    }
    const std::lock_guard lock(mutex_);
    if (stream.kind() == Stream::Kind::kLegacy && conflicts(stream.device(), true, true)) {
        return cudaErrorStreamCaptureImplicit;
    }
    const std::shared_ptr<Capture> capture = find(stream);
    if (capture == nullptr) {
        return cudaSuccess;
    }
    return std::exchange(capture->invalid, true) ? cudaErrorStreamCaptureInvalidated
                                                 : cudaErrorStreamCaptureUnsupported;
}

cudaError_t CaptureTable::forbid_captured(const Device& device) {
    if (none()) {
        return cudaSuccess;
    }
    const std::lock_guard lock(mutex_);
    return conflicts(device, false, true) ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t CaptureTable::forbid_captured(const Event& event) {
    const std::shared_ptr<const CapturedRecording> captured = event.captured();
    if (captured == nullptr) {
        return cudaSuccess;
    }
    const std::lock_guard lock(mutex_);
    if (const std::shared_ptr<Capture> capture = captured->capture.lock()) {
        capture->invalid = true;
    }
    return cudaErrorCapturedEvent;
}

cudaError_t CaptureTable::forbid_unsafe_slow() {
    if (thread_mode() == cudaStreamCaptureModeRelaxed) {
        return cudaSuccess;
    }
    const std::lock_guard lock(mutex_);
    bool forbidden = false;
    for (const std::shared_ptr<Capture>& capture : captures_) {
        const bool own = capture->thread == std::this_thread::get_id();
        const bool concerned = own ? capture->mode != cudaStreamCaptureModeRelaxed
                                   : capture->mode == cudaStreamCaptureModeGlobal &&
                                         thread_mode() == cudaStreamCaptureModeGlobal;
        if (concerned) {
            forbidden = true;
            capture->invalid = true;
        }
    }
    return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t CaptureTable::refuse(Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (const std::shared_ptr<Capture> capture = find(stream)) {
        capture->invalid = true;
    }
    return cudaErrorStreamCaptureUnsupported;
}

}  // namespace slimwire::emulator
