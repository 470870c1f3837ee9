// Streams and events.
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"
#include "tools/emulator/cudart/machine/settings.h"

using namespace slimwire::emulator;

namespace {

cudaError_t create_stream(cudaStream_t* stream,
                          unsigned int flags,
                          int priority,
                          const char* function = __builtin_FUNCTION()) {
    return device_call(
        [&](Runtime& runtime) {
            if (stream == nullptr ||
                (flags & ~static_cast<unsigned int>(cudaStreamNonBlocking)) != 0) {
                return cudaErrorInvalidValue;
            }
            const Stream::Kind kind = flags == cudaStreamNonBlocking ? Stream::Kind::kNonBlocking
                                                                     : Stream::Kind::kBlocking;
            const int clamped = priority > 0                   ? 0
                                : priority < kGreatestPriority ? kGreatestPriority
                                                               : priority;
            *stream =
                runtime.streams.add(runtime.device(current_device()).create_stream(kind, clamped));
            return cudaSuccess;
        },
        function);
}

// What a query or synchronisation of a stream covers beyond its own work: the legacy stream stands
// for the blocking streams, too.
std::vector<Dependency> joined(const Stream& stream) {
    return stream.kind() == Stream::Kind::kLegacy ? stream.device().implicit_dependencies(stream)
                                                  : std::vector<Dependency>{};
}

// Queries and synchronisations cannot be captured.
cudaError_t forbid_waiting(Runtime& runtime, Stream& stream) {
    const cudaError_t error = runtime.captures.forbid_captured(stream);
    return error != cudaSuccess ? error : runtime.captures.forbid_unsafe();
}

cudaError_t create_event(cudaEvent_t* event,
                         unsigned int flags,
                         const char* function = __builtin_FUNCTION()) {
    return device_call(
        [&](Runtime& runtime) {
            constexpr unsigned int kKnown =
                cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
            if (event == nullptr || (flags & ~kKnown) != 0) {
                return cudaErrorInvalidValue;
            }
            if ((flags & cudaEventInterprocess) != 0) {
                if ((flags & cudaEventDisableTiming) == 0) {
                    return cudaErrorInvalidValue;
                }
                say("cudaEventInterprocess: the emulator has no events between processes");
                return cudaErrorNotSupported;
            }
            *event = runtime.events.add(std::make_shared<Event>(current_device(), flags));
            return cudaSuccess;
        },
        function);
}

// A query or synchronisation of an event: runs body(recording); the recording is null before the
// first one.
template <class Body>
cudaError_t event_call(cudaEvent_t handle, Body body, const char* function = __builtin_FUNCTION()) {
    return call(
        [&](Runtime& runtime) {
            const std::shared_ptr<Event> event = runtime.events.find(handle);
            if (event == nullptr) {
                return cudaErrorInvalidResourceHandle;
            }
            SLIMWIRE_EMU_TRY(runtime.captures.forbid_captured(*event));
            SLIMWIRE_EMU_TRY(runtime.captures.forbid_unsafe());
            const cudaError_t error = body(runtime, event->recording());
            const cudaError_t sticky = runtime.device(event->device()).sticky();
            return sticky != cudaSuccess ? sticky : error;
        },
        function);
}

// A node of the capture that records or waits for an event at each launch of the graph.
cudaError_t submit_event(Runtime& runtime,
                         Stream& stream,
                         cudaGraphNodeType type,
                         std::shared_ptr<Event> event) {
    NodeWork work;
    work.type = type;
    work.event = std::move(event);
    return runtime.captures.add(stream, std::move(work));
}

cudaError_t record_event(cudaEvent_t event,
                         cudaStream_t stream,
                         unsigned int flags,
                         const char* function = __builtin_FUNCTION()) {
    return work_call(
        stream,
        [&](Runtime& runtime, Stream& target) {
            const bool external = flags == cudaEventRecordExternal;
            if (flags != cudaEventRecordDefault && !(external && target.capturing())) {
                return cudaErrorInvalidValue;
            }
            const std::shared_ptr<Event> recorded = runtime.events.find(event);
            if (recorded == nullptr || recorded->device() != target.device().ordinal()) {
                return cudaErrorInvalidResourceHandle;
            }
            if (external) {
                return submit_event(runtime, target, cudaGraphNodeTypeEventRecord, recorded);
            }
            if (target.capturing()) {
                return runtime.captures.record(target, *recorded);
            }
            recorded->set_recording(record(target));
            return cudaSuccess;
        },
        function);
}

}  // namespace

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return create_stream(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
    return create_stream(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
    return create_stream(stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<Stream> removed = runtime.streams.remove(stream);
        if (removed == nullptr) {
            return cudaErrorInvalidResourceHandle;
        }
        removed->retire();  // work already enqueued still runs
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return stream_call(stream, [](Runtime& runtime, Stream& target) {
        SLIMWIRE_EMU_TRY(forbid_waiting(runtime, target));
        if (!target.idle() || !joined(target).empty()) {
            return cudaErrorNotReady;
        }
        return target.device().sticky();
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream_call(stream, [](Runtime& runtime, Stream& target) {
        SLIMWIRE_EMU_TRY(forbid_waiting(runtime, target));
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        if (!target.only_allocates()) {
            may_wait(runtime, "cudaStreamSynchronize");
        }
        for (const Dependency& dependency : joined(target)) {
            dependency.stream->wait(dependency.ticket);
        }
        target.wait(target.last_ticket());
        return target.device().sticky();
    });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
    return stream_call(stream, [&](Runtime&, Stream& target) {
        const bool blocking = target.kind() != Stream::Kind::kNonBlocking;
        return give(flags, blocking ? cudaStreamDefault : cudaStreamNonBlocking);
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return stream_call(stream,
                       [&](Runtime&, Stream& target) { return give(priority, target.priority()); });
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* stream_id) {
    return stream_call(stream, [&](Runtime&, Stream& target) {
        // Default streams of different devices get different numbers, too.
        const bool legacy = target.kind() == Stream::Kind::kLegacy;
        const auto device = static_cast<uint64_t>(legacy ? target.device().ordinal() : 0);
        return give(stream_id, (device << 32) + target.id());
    });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
    return stream_call(
        stream, [&](Runtime&, Stream& target) { return give(device, target.device().ordinal()); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        const bool external = flags == cudaEventWaitExternal;
        if (flags != cudaEventWaitDefault && !(external && target.capturing())) {
            return cudaErrorInvalidValue;
        }
        const std::shared_ptr<Event> waited = runtime.events.find(event);
        if (waited == nullptr) {
            return cudaErrorInvalidResourceHandle;
        }
        if (external) {
            return submit_event(runtime, target, cudaGraphNodeTypeWaitEvent, waited);
        }
        const std::shared_ptr<const CapturedRecording> captured = waited->captured();
        const std::shared_ptr<Recording> recording = waited->recording();
        if (captured != nullptr || (recording != nullptr && target.capturing())) {
            return runtime.captures.wait(target, captured);
        }
        wait_for(target, recording);
        return cudaSuccess;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* user_data) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        if (fn == nullptr) {
            return cudaErrorInvalidValue;
        }
        const auto run = [=, strict = runtime.settings().strict] {
            // CUDA may run the host functions of all streams one after the other.
            static std::mutex mutex;
            const auto turn = strict ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
            fn(user_data);
        };
        return submit(runtime, target, cudaGraphNodeTypeHost,
                      make_operation("a host function", run, /*survives_poison=*/false,
                                     /*holds_queue=*/true));
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return create_event(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
    return create_event(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return call([&](Runtime& runtime) {
        return runtime.events.remove(event) != nullptr ? cudaSuccess
                                                       : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    return record_event(event, stream, flags);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return record_event(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return event_call(event, [](Runtime&, const std::shared_ptr<Recording>& recording) {
        return recording == nullptr || recording->done() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event_call(event, [](Runtime& runtime, const std::shared_ptr<Recording>& recording) {
        may_wait(runtime, "cudaEventSynchronize");
        if (recording != nullptr && !recording->done()) {
            if (Stream::on_worker()) {
                return cudaErrorNotPermitted;
            }
            recording->wait();
        }
        return cudaSuccess;
    });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    return call([&](Runtime& runtime) {
        const std::shared_ptr<Event> first = runtime.events.find(start);
        const std::shared_ptr<Event> last = runtime.events.find(end);
        if (ms == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (first == nullptr || last == nullptr || first->device() != last->device() ||
            ((first->flags() | last->flags()) & cudaEventDisableTiming) != 0) {
            return cudaErrorInvalidResourceHandle;
        }
        for (const std::shared_ptr<Event>& event : {first, last}) {
            SLIMWIRE_EMU_TRY(runtime.captures.forbid_captured(*event));
        }
        const std::shared_ptr<Recording> from = first->recording();
        const std::shared_ptr<Recording> to = last->recording();
        if (from == nullptr || to == nullptr) {
            return cudaErrorInvalidResourceHandle;
        }
        if (!from->done() || !to->done()) {
            return cudaErrorNotReady;
        }
        *ms = std::chrono::duration<float, std::milli>(to->time() - from->time()).count();
        return cudaSuccess;
    });
}
