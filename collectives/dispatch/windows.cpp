#include "collectives/dispatch/windows.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "collectives/algorithms/algorithm.h"
#include "collectives/call/log.h"
#include "collectives/call/nccl_types.h"
#include "collectives/dispatch/session.h"
#include "collectives/dispatch/thread_group.h"

namespace slimwire {

void SymmetricWindows::add(const SymmetricWindow& one) {
    const std::lock_guard lock(mutex_);
    all_.push_back(one);
    any_.store(true, std::memory_order_release);
}

void SymmetricWindows::remove(ncclWindow_t handle) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [&](const SymmetricWindow& one) { return one.handle == handle; });
    any_.store(!all_.empty(), std::memory_order_release);
}

void SymmetricWindows::ready() noexcept {
    const std::lock_guard lock(mutex_);
    for (SymmetricWindow& one : all_) {
        if (const ncclWindow_t* const where = std::exchange(one.where, nullptr)) {
            one.handle = *where;
        }
    }
    std::erase_if(all_, [](const SymmetricWindow& one) { return one.handle == nullptr; });
    any_.store(!all_.empty(), std::memory_order_release);
}

bool SymmetricWindows::hold(const void* buffer) const noexcept {
    const auto* const at = static_cast<const std::byte*>(buffer);
    const std::lock_guard lock(mutex_);
    return std::any_of(all_.begin(), all_.end(), [&](const SymmetricWindow& one) {
        return one.where == nullptr && at >= one.begin && at < one.begin + one.bytes;
    });
}

void window_registered(Runtime& runtime,
                       ncclComm_t comm,
                       const SymmetricWindow& window,
                       int flags,
                       ncclResult_t result) {
    Session* const state = session_of(runtime, comm);
    if ((flags & NCCL_WIN_COLL_SYMMETRIC) == 0 || state == nullptr ||
        (result != ncclSuccess && result != ncclInProgress)) {
        return;
    }
    if (in_group()) {
        thread_group().windows.emplace_back(state, window);
        return;
    }
    state->windows.add(window);
    if (result == ncclSuccess) {
        state->windows.ready();
    }
}

void window_deregistered(Runtime& runtime, ncclComm_t comm, ncclWindow_t handle) noexcept {
    if (Session* const state = session_of(runtime, comm); state != nullptr && handle != nullptr) {
        state->windows.remove(handle);
    }
}

void windows_ready(Runtime& runtime, ncclComm_t comm) noexcept {
    if (Session* const state = session_of(runtime, comm);
        state != nullptr && !state->windows.empty()) {
        state->windows.ready();
    }
}

void count_one_sided(Runtime& runtime,
                     ncclComm_t comm,
                     const char* operation,
                     ncclDataType_t type,
                     uint64_t count) noexcept {
    Session* const state = session_of(runtime, comm);
    if (state == nullptr || !known_dtype(type)) {
        return;
    }
    const auto dtype = static_cast<DType>(type);
    try {
        CallStats*& key = state->one_sided[{operation, dtype}];
        if (key == nullptr) {
            key = &state->stats->add_key();
            key->one_sided = operation;
            key->signature.dtype = dtype;
            key->codec = key->algorithm = algorithm_name(Algorithm::kNative);
            key->reason = "one-sided: the peer makes no call that could decode";
            key->wire_is_estimate = key->folded = true;
            state->stats->publish(*key);
        }
        const uint64_t bytes = count * dtype_bytes(dtype);
        key->count_folded_call(bytes, bytes, bytes);
    } catch (const std::exception& error) {
        log_once(LogLevel::kWarn, "one-sided",
                 std::string("a call is not counted: ") + error.what());
    }
}

bool on_windows(const CollectiveCall& call, const Session& state) noexcept {
    const SymmetricWindows& windows = state.windows;
    if (is_point_to_point(call.signature.op)) {
        return false;
    }
    const Op op = call.signature.op;
    const bool receive = op != Op::kReduce && op != Op::kGather;
    const bool send = op != Op::kBroadcast && op != Op::kScatter;
    return (!send || windows.hold(call.send)) && (!receive || windows.hold(call.recv));
}

}  // namespace slimwire
