// Which way a call goes that a plan may compress: native after all, and why, or not; and its place
// in the training step, which is asked for on the way. Asked by dispatch(), and in mode shadow by
// the observer, once for each call, because asking counts it.
//
// Malformed calls aside the answers are equal on all ranks that take part.
#pragma once

#include <optional>
#include <utility>

#include "collectives/call/call.h"
#include "collectives/dispatch/session.h"

namespace slimwire {

// The place of a call in the step, which is asked for once, because that counts the call.
struct AskedPlace {
    StepPosition place;
    bool asked = false;
    MessagePairing::Place pair = {};  // of a message where Plan::pairs
};

// Whether a call reads, and writes, a buffer on this rank.
[[nodiscard]] std::pair<bool, bool> used_buffers(const CallSignature& signature, int rank) noexcept;

// Malformed calls go native, and NCCL refuses them; they do not count, because the other ranks know
// nothing of them. Errors: of a question to CUDA.
Result<std::optional<FallbackReason>> malformed(const DeviceApi& api,
                                                const CollectiveCall& call,
                                                const Communicator& state);

// Why a call of a compressed plan goes native all the same: the phase, the ordinal of the call, its
// place, being captured. Counts the call. A question that CUDA does not answer is an error of the
// call: the other ranks compress.
Result<std::optional<FallbackReason>> check_fallback(Runtime& runtime,
                                                     const CollectiveCall& call,
                                                     Session* state,
                                                     const PlanEntry& entry,
                                                     AskedPlace* place);

// Whether the tensor at `place`, which is sure, may have a residual: what the communicator's plans
// and places were granted before it, in the order of the calls, must leave room. Equal on all ranks
// that make such calls, and remembered; `first` tells that it was decided now.
bool grant_place(const Settings& settings,
                 Session* state,
                 const Plan& plan,
                 const StepPosition& place,
                 bool* first);
// Takes that decision back, the later ones of the communicator first: its call never was.
void ungrant_place(Session* state, const PlaceKey& key) noexcept;

// Hears of a message, where rows of messages are wanted (Session::rows). Errors: CUDA's.
Status hear_message(Runtime& runtime, const CollectiveCall& call, Session* state);

// A well-formed collective that goes native: its place in the step, which counts it; unsure where
// nobody looks for steps.
StepPosition follow_native(Runtime& runtime, const CollectiveCall& call, Session* state);

// In a group's journal: a result of such a call may say that a step was skipped.
void undo_flags(Communicator* state, uint64_t, uint64_t) noexcept;

// For a call whose rules ask for its ordinal or direction (`entry`, Plan::asks_place()): finds it
// and, where it is known, puts the plan of such calls and their signature; null as plan_of() gives
// it. Errors: of a question to CUDA.
Status find_placed_plan(
    Runtime& runtime, Session* state, CollectiveCall* call, PlanEntry** entry, AskedPlace* place);

// The call's operator, if the program made it on this communicator and for the call's type; else
// null.
const PreMulScalar* scalar_of(const Communicator& state, const CollectiveCall& call) noexcept;

}  // namespace slimwire
