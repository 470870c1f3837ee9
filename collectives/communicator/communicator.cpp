#include "collectives/communicator/communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "collectives/communicator/pending_creations.h"

namespace slimwire {
namespace {

std::array<cudaStream_t*, 2> streams_of(Communicator* state) {
    return {&state->exchange_stream, &state->work_stream};
}
// Those that only order work, then those that also tell the time.
constexpr size_t kTimedFrom = 7;
std::array<cudaEvent_t*, 9> events_of(Communicator* state) {
    return {&state->ready[0], &state->ready[1],  &state->done[0],
            &state->done[1],  &state->chain,     &state->capture_chain,
            &state->fork,     &state->timing[0], &state->timing[1]};
}

void destroy_objects(const DeviceApi& api, Communicator* state) {
    for (cudaEvent_t* event : events_of(state)) {
        if (*event != nullptr) {
            tolerate(api, api.event_destroy(std::exchange(*event, nullptr)));
        }
    }
    for (cudaStream_t* stream : streams_of(state)) {
        if (*stream != nullptr) {
            tolerate(api, api.stream_destroy(std::exchange(*stream, nullptr)));
        }
    }
}

// All or none: a later call takes a stream for the sign that everything is there.
Status make_objects(const DeviceApi& api, Communicator* state) {
    Status status;
    for (cudaStream_t* stream : streams_of(state)) {
        if (status.ok()) {
            status = cuda_status(api, api.stream_create_with_flags(stream, cudaStreamNonBlocking),
                                 "internal stream");
        }
    }
    const auto events = events_of(state);
    for (size_t i = 0; i < events.size() && status.ok(); ++i) {
        const unsigned flags = i < kTimedFrom ? cudaEventDisableTiming : cudaEventDefault;
        status = cuda_status(api, api.event_create_with_flags(events[i], flags), "internal event");
    }
    if (!status.ok()) {
        destroy_objects(api, state);
    }
    return status;
}

}  // namespace

Status prepare_device_objects(const DeviceApi& api, Communicator* state, uint64_t scratch_bytes) {
    if (state->exchange_stream != nullptr && scratch_bytes <= state->scratch_bytes) {
        return {};
    }
    const DeviceScope device(api, state->device);
    if (state->exchange_stream == nullptr) {
        SLIMWIRE_TRY(make_objects(api, state));
    }
    if (scratch_bytes <= state->scratch_bytes) {
        return {};
    }
    if (state->chained) {
        SLIMWIRE_TRY(cuda_status(api, api.event_synchronize(state->chain), "wait for scratch"));
    }
    void* grown = nullptr;
    if (const cudaError_t error = api.malloc(&grown, scratch_bytes); error != cudaSuccess) {
        Status failed = cuda_status(api, error, "scratch allocation");
        return {Code::kOutOfMemory,
                failed.message() + "; " + std::to_string(scratch_bytes) + " bytes were asked for"};
    }
    if (state->scratch != nullptr) {
        tolerate(api, api.free(state->scratch));
    }
    if (state->memory != nullptr) {
        state->memory->give_back(state->device, state->scratch_bytes);
        state->memory->take(state->device, scratch_bytes);
    }
    state->scratch = grown;
    state->scratch_bytes = scratch_bytes;
    if (state->stats) {
        state->stats->scratch_bytes = scratch_bytes;
    }
    return {};
}

bool calls_ended(const DeviceApi& api, const Communicator& state, bool wait) noexcept {
    bool ended = !state.chained || api.event_query(state.chain) == cudaSuccess;
    if (!ended && wait) {
        ended = api.event_synchronize(state.chain) == cudaSuccess;
    }
    (void)api.get_last_error();
    return ended;
}

void release_device_objects(const DeviceApi& api,
                            Communicator* state,
                            DeferredFree* left) noexcept {
    if (state->memory != nullptr) {
        state->memory->give_back(state->device, std::exchange(state->scratch_bytes, 0));
    }
    void* const scratch = std::exchange(state->scratch, nullptr);
    if (left != nullptr) {
        left->end = std::exchange(state->chain, nullptr);
        if (scratch != nullptr) {
            left->memory.push_back(scratch);
        }
    } else if (scratch != nullptr) {
        tolerate(api, api.free(scratch));
    }
    destroy_objects(api, state);
}

uint64_t free_device_bytes(const DeviceApi& api) {
    size_t free_bytes = 0, total_bytes = 0;
    if (api.mem_get_info(&free_bytes, &total_bytes) != cudaSuccess) {
        (void)api.get_last_error();
        return 0;
    }
    return free_bytes;
}

uint64_t steady_us() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

FirstCall first_call_begins(const DeviceApi& api, const Communicator& state) {
    FirstCall call;
    if (state.stats->first_call_us.load(std::memory_order_relaxed) == 0) {
        const DeviceScope device(api, state.device);
        call.began_us = steady_us();
        call.free_bytes = free_device_bytes(api);
        call.own_bytes = state.stats->scratch_bytes + state.stats->residual_bytes;
    }
    return call;
}

void first_call_ends(const DeviceApi& api, Communicator* state, const FirstCall& call) {
    CommStats& stats = *state->stats;
    if (call.began_us == 0 || stats.first_call_us != 0) {
        return;  // several calls of one group may begin as the first
    }
    const uint64_t went = call.free_bytes - std::min(call.free_bytes, free_device_bytes(api));
    const uint64_t own = stats.scratch_bytes + stats.residual_bytes - call.own_bytes;
    stats.private_bytes += went - std::min(went, own);
    stats.first_call_us = std::max<uint64_t>(1, steady_us() - call.began_us);
}

Status still_alive(const RealNccl& nccl, const Communicator& state, bool* launching) {
    if (state.ended) {
        return {Code::kInvalidUsage, "the communicator was aborted meanwhile"};
    }
    ncclResult_t now = ncclSuccess;
    if (nccl.CommGetAsyncError != nullptr) {
        SLIMWIRE_TRY(
            nccl_status(nccl, nccl.CommGetAsyncError(state.comm, &now), "ncclCommGetAsyncError"));
    }
    *launching = now == ncclInProgress;
    return nccl_status(nccl, now, "the communicator");
}

Status settle_exchange(const RealNccl& nccl, Communicator* state) {
    ncclResult_t result = ncclInProgress;
    for (Backoff backoff; result == ncclInProgress; backoff.pause()) {
        const std::lock_guard lock(state->exchange_mutex);
        if (state->ended) {
            return {Code::kInvalidUsage, "the communicator was aborted"};
        }
        SLIMWIRE_TRY(nccl_status(nccl, nccl.CommGetAsyncError(state->exchange_comm, &result),
                                 "ncclCommGetAsyncError"));
    }
    return nccl_status(nccl, result, "launch of an exchange");
}

}  // namespace slimwire
