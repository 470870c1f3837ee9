#include "collectives/communicator/communicator.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/base/emulator_abi.h"
#include "collectives/call/log.h"
#include "collectives/communicator/pending_creations.h"

namespace slimwire {

std::string log_prefix(const Communicator& state, const char* name) {
    return "rank " + std::to_string(state.rank) + " comm " +
           (state.stats ? state.stats->comm : "?") +
           (name != nullptr ? std::string(" tensor ") + name : "");
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

namespace {

// What slimwire has of the communicator's device: all of it where that is known, else what this
// communicator counts.
uint64_t own_bytes(const DeviceApi& api, const Communicator& state) {
    const std::optional<uint64_t> reserved = state.device_memory->reserved(api, state.device);
    return reserved.value_or(state.stats->scratch_bytes + state.stats->residual_bytes);
}

}  // namespace

FirstCall first_call_costs(const DeviceApi& api, const Communicator& state) {
    const DeviceScope device(api, state.device);
    const uint64_t began_us = steady_us();
    return {began_us, free_device_bytes(api), own_bytes(api, state)};
}

void first_call_ends(const DeviceApi& api, Communicator* state, const FirstCall& call) {
    CommStats& stats = *state->stats;
    if (call.began_us == 0 || stats.first_call_us != 0) {
        return;  // several calls of one group may begin as the first
    }
    const uint64_t went = call.free_bytes - std::min(call.free_bytes, free_device_bytes(api));
    const uint64_t now = own_bytes(api, *state);
    const uint64_t own = now - std::min(now, call.own_bytes);
    stats.private_bytes += went - std::min(went, own);
    stats.first_call_us = std::max<uint64_t>(1, steady_us() - call.began_us);
}

void stay_native(Communicator* state, const std::string& why) {
    state->shape.go = false;
    state->shape.native_reason = why;
    state->stats->agreement = "native: " + why;
    log_line(LogLevel::kWarn, log_prefix(*state) + " stays native: " + why);
}

Status still_alive(const Communicator& state, bool* launching) {
    const RealNccl& nccl = *state.nccl;
    const std::lock_guard lock(state.exchange_mutex);
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

void note_host_wait(const DeviceApi& api, const Communicator& state, const char* what) noexcept {
    state.stats->host_waits.fetch_add(1, std::memory_order_relaxed);
    if (api.emulator != nullptr && api.emulator->may_wait != nullptr) {
        api.emulator->may_wait(what);
    }
}

Status await_launch(const DeviceApi& api,
                    const Communicator& state,
                    const char* what,
                    uint64_t limit_us) {
    bool launching = true, waits = false;
    const uint64_t began_us = steady_us();
    for (Backoff backoff; launching; backoff.pause()) {
        SLIMWIRE_TRY(still_alive(state, &launching));
        SLIMWIRE_TRY(launching ? in_time(what, began_us, limit_us) : Status());
        if (launching && !std::exchange(waits, true)) {
            note_host_wait(api, state, what);
        }
    }
    return {};
}

Status in_time(const char* what, uint64_t began_us, uint64_t limit_us) {
    return limit_us == 0 || steady_us() - began_us < limit_us
               ? Status()
               : Status(Code::kUnsupported, std::string(what) + " did not come for " +
                                                std::to_string(limit_us / 1000) + " ms");
}

Status await_value(const DeviceApi& api,
                   const Communicator& state,
                   const HostCopies& copies,
                   const HostValue& value,
                   const char* what,
                   uint64_t limit_us) {
    if (value.there.load(std::memory_order_acquire)) {
        return {};
    }
    note_host_wait(api, state, what);
    const DeviceScope device(api, state.device);
    const uint64_t began_us = steady_us();
    for (Backoff backoff; !value.there.load(std::memory_order_acquire); backoff.pause()) {
        const cudaError_t copied = copies.query(api);
        if (!tolerate(api, copied) && copied != cudaErrorNotReady) {
            return cuda_status(api, copied, what);
        }
        if (copied == cudaSuccess && !value.there.load(std::memory_order_acquire)) {
            return {Code::kInvalidUsage, std::string(what) + " were lost with a call that failed"};
        }
        bool launching = false;
        SLIMWIRE_TRY(still_alive(state, &launching));
        SLIMWIRE_TRY(in_time(what, began_us, limit_us));
    }
    return {};
}

Status settle_exchange(const DeviceApi& api, Communicator* state) {
    const RealNccl& nccl = *state->nccl;
    ncclResult_t result = ncclInProgress;
    note_host_wait(api, *state, "the launch of an exchange");
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
