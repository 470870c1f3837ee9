#include "collectives/dispatch/call_residual.h"

#include <utility>

#include "collectives/call/log.h"
#include "collectives/dispatch/call_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/identity/tensor_names.h"

namespace slimwire {
namespace {

// Why there is no room for `bytes` more that tensors keep.
std::string why_no_room(const Runtime& runtime, int device, uint64_t bytes) {
    const uint64_t limit = runtime.memory.limit(), held = runtime.memory.held(device);
    return limit != 0 && held + bytes > limit
               ? "scratch and residuals hold " + std::to_string(held) +
                     " of SLIMWIRE_MAX_MEMORY=" + std::to_string(limit) + " on device " +
                     std::to_string(device)
               : "device " + std::to_string(device) + " has no memory for it";
}

const char* what_ranks_share(const Plan& plan) noexcept {
    return plan.residual.state_bytes > 0 ? "state of matrices' factors" : "estimates of ef21";
}

// This rank alone knows that it has no room, so the call is compressed as on the others, and what
// its encoding loses is lost.
void without_residual(const Runtime& runtime,
                      Session* state,
                      const Plan& plan,
                      const CollectiveCall& call) {
    state->stats->calls_without_residual.fetch_add(1, std::memory_order_relaxed);
    if (!std::exchange(state->granted.lack_is_told, true)) {
        log_line(LogLevel::kWarn,
                 log_prefix(*state, TensorNames::of(call)) + ": " + op_name(plan.signature.op) +
                     " count " + std::to_string(plan.signature.count) +
                     " goes without its residual of " + std::to_string(plan.residual.bytes) +
                     " bytes: " + why_no_room(runtime, state->device, plan.residual.bytes));
    }
}

// What ranks hold alike they have agreed on for each communicator; which others a rank is in, the
// ranks of this one do not know.
void goes_beyond(const Runtime& runtime, const Session& state, const Plan& plan) {
    const uint64_t limit = runtime.memory.limit();
    if (limit != 0 && runtime.memory.held(state.device) > limit) {
        log_once(LogLevel::kWarn, "beyond SLIMWIRE_MAX_MEMORY",
                 log_prefix(state) + ": " + what_ranks_share(plan) +
                     " go beyond SLIMWIRE_MAX_MEMORY=" + std::to_string(limit) +
                     ": all communicators hold " +
                     std::to_string(runtime.memory.held(state.device)) + " on device " +
                     std::to_string(state.device));
    }
}

// Once a communicator: what is odd about a call, behind its count.
void warn_of_call(const Session& state,
                  const CollectiveCall& call,
                  const char* about,
                  const char* text) {
    log_once(LogLevel::kWarn, about + (" " + state.stats->comm),
             log_prefix(state, TensorNames::of(call)) + ": " + op_name(call.signature.op) +
                 " count " + std::to_string(call.signature.count) + text);
}

// Only this rank knows its addresses, and the others count on the slot.
void seems_several(const Session& state, const CollectiveCall& call) {
    warn_of_call(state, call, "in turn",
                 " comes from several buffers in turn, and all share what is kept of one tensor, "
                 "as nothing else tells a step; if they are several tensors, slimwire_mark_step "
                 "tells them apart");
}

// Each replay will ask again what only a tensor's first call asks (ef21_sync.h).
Status first_is_captured(const DeviceApi& api, const Session& state, const CollectiveCall& call) {
    warn_of_call(state, call, "first captured",
                 " is captured at its first call, and each replay compares again what ranks "
                 "loaded; a rank that makes it outside of graphs does so once, and would then wait "
                 "for ever: make a tensor's first call outside of graphs");
    return count_tensors_first(api, call, state);
}

// State that all ranks must hold is not agreed on ahead: its size is known at a tensor's first
// call, when others exchange already, so that native would be too late; what ranks told each other
// in that exchange could count some calls later, as nobody waits for it; and no slice of scratch,
// which is what a rank surely has, could stand in for all of the state until then. So a rank that
// gets it neither of its device nor of the host (DeviceMemory::allocate_anyhow) ends with an error.
Status no_room(const Communicator& state, const Plan& plan) {
    return {Code::kInvalidUsage, std::string("no room for the ") + what_ranks_share(plan) +
                                     ", which the other ranks may have, of " +
                                     std::to_string(plan.residual.bytes) + " bytes: device " +
                                     std::to_string(state.device) + " and the host have no memory"};
}

}  // namespace

Status take_unusual(Runtime& runtime,
                    const BeforeCall& before,
                    const QueuedCall& item,
                    const Plan& keeper,
                    const Residual& own) {
    Session& state = *item.state;
    const bool shares = keeper.replicated_state();
    if (own.in_turn && state.rank == 0) {
        seems_several(state, item.call);
    }
    if (own.origin != ResidualOrigin::kKept || own.freed_others) {
        const ResidualStore::Held held = dispatch_state(runtime).residuals.held(state.state_key);
        state.stats->residual_bytes = held.bytes;
        state.stats->residual_tensors = held.tensors;
        if (shares && !own.freed_others) {
            goes_beyond(runtime, state, keeper);
            if (before.captured) {
                return first_is_captured(before.api, state, item.call);
            }
        }
    } else if (own.buffer == nullptr && shares) {
        return no_room(state, keeper);
    } else if (own.buffer == nullptr && item.hook == nullptr) {
        without_residual(runtime, &state, keeper, item.call);
    }
    return {};
}

}  // namespace slimwire
