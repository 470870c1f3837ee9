#include "collectives/communicator/device_objects.h"

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {
namespace {

std::array<cudaStream_t*, 3> streams_of(DeviceObjects* objects) {
    return {&objects->exchange_stream, &objects->work_stream, &objects->before_stream};
}
// Those that only order work, then those that also tell the time.
constexpr size_t kTimedFrom = 7;
std::array<cudaEvent_t*, 9> events_of(DeviceObjects* objects) {
    return {&objects->ready[0], &objects->ready[1],  &objects->done[0],
            &objects->done[1],  &objects->chain,     &objects->capture_chain,
            &objects->fork,     &objects->timing[0], &objects->timing[1]};
}

void destroy_objects(const DeviceApi& api, DeviceObjects* objects) {
    for (cudaEvent_t* event : events_of(objects)) {
        if (*event != nullptr) {
            tolerate(api, api.event_destroy(std::exchange(*event, nullptr)));
        }
    }
    for (cudaStream_t* stream : streams_of(objects)) {
        if (*stream != nullptr) {
            tolerate(api, api.stream_destroy(std::exchange(*stream, nullptr)));
        }
    }
}

// All or none: a later call takes a stream for the sign that everything is there.
Status make_objects(const DeviceApi& api, DeviceObjects* objects) {
    Status status;
    for (cudaStream_t* stream : streams_of(objects)) {
        if (status.ok()) {
            status = cuda_status(api, make_internal_stream(api, stream), "internal stream");
        }
    }
    const auto events = events_of(objects);
    for (size_t i = 0; i < events.size() && status.ok(); ++i) {
        const unsigned flags = i < kTimedFrom ? cudaEventDisableTiming : cudaEventDefault;
        status = cuda_status(api, api.event_create_with_flags(events[i], flags), "internal event");
    }
    if (!status.ok()) {
        destroy_objects(api, objects);
    }
    return status;
}

}  // namespace

cudaError_t make_internal_stream(const DeviceApi& api, cudaStream_t* stream) {
    constexpr int kHighest = std::numeric_limits<int>::min();  // CUDA takes the highest there is
    return api.stream_create_with_priority(stream, cudaStreamNonBlocking, kHighest);
}

Status BeforeCall::begin(cudaStream_t own) const {
    return objects->chained ? cuda_status(api, api.stream_wait_event(own, objects->chain, 0),
                                          "work before a captured call")
                            : Status();
}

// Also behind what failed halfway, whose memory the chain then tells when it is free.
Status BeforeCall::end(cudaStream_t own, Status status) const {
    Status recorded =
        cuda_status(api, api.event_record(objects->chain, own), "work before a captured call");
    objects->chained |= recorded.ok();
    return status.ok() ? recorded : status;
}

void BeforeCall::retire(DeviceMemory* memory, int device, void* buffer) const noexcept {
    Retirement left(memory, api, device);
    left.add(buffer);
    cudaEvent_t end = nullptr;
    if (captured) {
        left.after(objects->chain);
    } else if (tolerate(api, api.event_create_with_flags(&end, cudaEventDisableTiming))) {
        tolerate(api, api.event_record(end, stream));
        left.after(end);
        tolerate(api, api.event_destroy(end));
    }
}

// Scratch that graphs may know stays on the device: NCCL registers with the peers what captured
// calls give it (transport/p2p.cc of NCCL 2.30), and they would go on writing into what went.
void reserve_scratch(const DeviceApi& api, Communicator* state, uint64_t wanted) noexcept {
    constexpr uint64_t kLeast = 4096;
    DeviceObjects& objects = state->objects;
    wanted += wanted > 0 ? DeviceObjects::kCounterBytes : 0;
    const DeviceScope scope(api, state->device);
    size_t free_bytes = 0, total_bytes = 0;
    if (!tolerate(api, api.mem_get_info(&free_bytes, &total_bytes))) {
        return;
    }
    while (wanted >= kLeast && objects.reserve == nullptr) {
        const uint64_t bytes = state->memory->take_scratch(state->device, wanted, total_bytes);
        void* memory = nullptr;
        if (bytes >= kLeast &&
            tolerate(api, state->device_memory->allocate(api, state->device, bytes, &memory))) {
            objects.reserve = memory;
            objects.reserve_bytes = bytes;
        } else {
            state->memory->give_back_scratch(state->device, bytes);
        }
        wanted = bytes / 2;
    }
    state->stats->scratch_bytes = objects.reserve_bytes;
}

void chain_all(const DeviceApi& api, Communicator* state, cudaStream_t work) noexcept {
    DeviceObjects& objects = state->objects;
    const DeviceScope device(api, state->device);
    cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    const cudaStream_t after_all = objects.before_stream;
    if (!tolerate(api, api.stream_is_capturing(objects.exchange_stream, &captured)) ||
        captured != cudaStreamCaptureStatusNone) {
        return;
    }
    for (const cudaStream_t stream : {work, objects.exchange_stream}) {
        if (tolerate(api, api.event_record(objects.fork, stream))) {
            tolerate(api, api.stream_wait_event(after_all, objects.fork, 0));
        }
    }
    if (objects.chained) {
        tolerate(api, api.stream_wait_event(after_all, objects.chain, 0));
    }
    objects.chained |= tolerate(api, api.event_record(objects.chain, after_all));
}

void drop_reserve(const DeviceApi& api, Communicator* state) noexcept {
    DeviceObjects& objects = state->objects;
    if (objects.reserve_bytes > 0) {
        state->memory->give_back_scratch(state->device, std::exchange(objects.reserve_bytes, 0));
        state->device_memory->free(api, state->device, std::exchange(objects.reserve, nullptr));
        state->stats->scratch_bytes = 0;
        Retirement left(state->device_memory, api, state->device);
        objects.copies.release(api, &left);
    }
    destroy_objects(api, &objects);
}

void suspend_memory(const DeviceApi& api, Communicator* state, bool drop) noexcept {
    DeviceObjects& objects = state->objects;
    const DeviceScope scope(api, state->device);
    objects.suspended.now = true;
    if (objects.home == 0) {
        return;
    }
    Result<MappedMemory::Taken> taken = Status(Code::kInvalidUsage, "its calls have not ended");
    if (!objects.chained || tolerate(api, api.event_query(objects.chain))) {
        taken = state->device_memory->mapped().suspend(api, objects.home, drop);
    }
    const std::string prefix = "communicator " + state->stats->comm + " is suspended: ";
    if (!taken.ok()) {
        log_once(LogLevel::kWarn, "memory of " + std::to_string(objects.home),
                 prefix + "residuals stay on the device: " + taken.status().message());
        return;
    }
    log_line(LogLevel::kInfo, prefix + "the host has " + std::to_string(taken.value().moved) +
                                  " bytes of it, and " + std::to_string(taken.value().dropped) +
                                  " are dropped");
    objects.suspended.scratch_bytes = objects.scratch_bytes;
    state->stats->scratch_bytes -= objects.scratch_bytes;
    objects.suspended.residual_bytes = state->stats->residual_bytes.exchange(0);
}

Status resume_memory(const DeviceApi& api, Communicator* state) noexcept {
    Suspended& suspended = state->objects.suspended;
    if (suspended.now && state->objects.home != 0) {
        const DeviceScope scope(api, state->device);
        SLIMWIRE_TRY(state->device_memory->mapped().resume(api, state->objects.home));
        state->stats->scratch_bytes += std::exchange(suspended.scratch_bytes, 0);
        state->stats->residual_bytes += std::exchange(suspended.residual_bytes, 0);
    }
    return {};
}

Status prepare_device_objects(const DeviceApi& api, Communicator* state, uint64_t scratch_bytes) {
    DeviceObjects& objects = state->objects;
    if (objects.prepared(scratch_bytes)) {
        return {};
    }
    const DeviceScope device(api, state->device);
    if (objects.exchange_stream == nullptr) {
        SLIMWIRE_TRY(make_objects(api, &objects));
    }
    if (scratch_bytes <= objects.scratch_bytes) {
        return {};
    }
    void* grown = nullptr;
    if (const cudaError_t error = state->device_memory->allocate(api, state->device, scratch_bytes,
                                                                 &grown, objects.home, 0);
        error != cudaSuccess) {
        Status failed = cuda_status(api, error, "scratch allocation");
        return {Code::kOutOfMemory,
                failed.message() + "; " + std::to_string(scratch_bytes) + " bytes were asked for"};
    }
    if (objects.scratch != nullptr) {
        Retirement outgrown(state->device_memory, api, state->device);
        outgrown.after(objects.chain);
        outgrown.add(objects.scratch);
    }
    if (state->memory != nullptr) {
        state->memory->give_back(state->device, objects.scratch_bytes);
        state->memory->take(state->device, scratch_bytes);
    }
    objects.scratch = grown;
    objects.scratch_bytes = scratch_bytes;
    if (state->stats) {
        state->stats->scratch_bytes = objects.reserve_bytes + scratch_bytes;
    }
    return {};
}

void release_device_objects(const DeviceApi& api, Communicator* state, Retirement* left) noexcept {
    DeviceObjects& objects = state->objects;
    if (state->memory != nullptr) {
        state->memory->give_back(state->device, std::exchange(objects.scratch_bytes, 0));
        if (objects.reserve_owner == nullptr) {
            state->memory->give_back_scratch(state->device, objects.reserve_bytes);
        }
    }
    left->after(objects.chain);
    if (objects.reserve_owner != nullptr) {
        left->give_up(std::exchange(objects.reserve_owner, nullptr));
    } else {
        left->add(objects.reserve);
    }
    objects.reserve = nullptr;
    objects.reserve_bytes = 0;
    left->add(std::exchange(objects.scratch, nullptr));
    objects.copies.release(api, left);
    destroy_objects(api, &objects);
}

}  // namespace slimwire
