// The plan of a call, found or made, and the counters it is counted by. On the path of every call:
// a repeat is one look-up in the plan cache.
//
// Jobs whose counts never repeat (packed sequences, tokens routed to experts) must stay bounded:
// beyond kMaxPlans kinds of calls on one communicator, native kinds get no plan, compressed kinds
// and those whose direction or ordinal decides get one that may be dropped again, and all are
// counted by one key for each operation.
#pragma once

#include "collectives/dispatch/session.h"

namespace slimwire {

inline constexpr size_t kMaxPlans = 4096;

PlanEntry* add_plan(Runtime& runtime,
                    Session* state,
                    const CallSignature& signature,
                    bool may_drop);
// The plan of a call; null for a native call that gets none, which is then counted. `may_drop`:
// no plan of this communicator is in use by a queued call.
inline PlanEntry* plan_of(Runtime& runtime,
                          Session* state,
                          const CallSignature& signature,
                          bool may_drop) {
    PlanEntry* const entry = state->plans.find(signature);
    return entry != nullptr ? entry : add_plan(runtime, state, signature, may_drop);
}
// Forgets the plans that may be dropped where there are kMaxPlans; no plan is in use.
void drop_crowd(Session* state);

// Counts one compressed call; `stats`: those of the plan (PlanEntry::stats_of).
void count_run(const Session& state, const Plan& plan, CallStats* stats) noexcept;
// Counts one call of a native plan.
void count_native(const PlanEntry& entry, const Session& state) noexcept;
// Counts one call of a compressed plan that went native, or that was sent raw after all.
void count_fallback(Session* state, PlanEntry* entry, FallbackReason fallback);

}  // namespace slimwire
