#include "collectives/dispatch/windows.h"

#include <algorithm>
#include <utility>

#include "collectives/dispatch/session.h"
#include "collectives/dispatch/thread_group.h"

namespace slimwire {

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
    state->windows.push_back(window);
    if (result == ncclSuccess) {
        windows_ready(state);
    }
}

void window_deregistered(Runtime& runtime, ncclComm_t comm, ncclWindow_t handle) noexcept {
    if (Session* const state = session_of(runtime, comm); state != nullptr && handle != nullptr) {
        std::erase_if(state->windows,
                      [&](const SymmetricWindow& one) { return one.handle == handle; });
    }
}

void windows_ready(Session* state) noexcept {
    for (SymmetricWindow& one : state->windows) {
        if (const ncclWindow_t* const where = std::exchange(one.where, nullptr)) {
            one.handle = *where;
        }
    }
    std::erase_if(state->windows, [](const SymmetricWindow& one) { return one.handle == nullptr; });
}

void windows_ready(Runtime& runtime, ncclComm_t comm) noexcept {
    if (Session* const state = session_of(runtime, comm);
        state != nullptr && !state->windows.empty()) {
        windows_ready(state);
    }
}

bool on_windows(const CollectiveCall& call, const Session& state) noexcept {
    if (state.windows.empty() || is_point_to_point(call.signature.op)) {
        return false;
    }
    const auto within = [&](const void* buffer) {
        const auto* const at = static_cast<const std::byte*>(buffer);
        return std::any_of(
            state.windows.begin(), state.windows.end(), [&](const SymmetricWindow& one) {
                return one.where == nullptr && at >= one.begin && at < one.begin + one.bytes;
            });
    };
    const Op op = call.signature.op;
    const bool receive = op != Op::kReduce && op != Op::kGather;
    const bool send = op != Op::kBroadcast && op != Op::kScatter;
    return (!send || within(call.send)) && (!receive || within(call.recv));
}

}  // namespace slimwire
