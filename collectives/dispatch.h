// Decides what happens to a call and runs it; keeps the groups of the calling thread. Called by
// plugin/preload only, after re-entry was ruled out.
//
// Compressed calls of a group run after its native part was launched, one after the other for each
// communicator and side by side over communicators, whatever the group's composition: the order in
// which a communicator's private exchanges are issued depends on the order of its calls alone.
#pragma once

#include <optional>

#include "collectives/call.h"
#include "collectives/runtime.h"

namespace slimwire {

// Empty: the caller forwards the call to the real NCCL. Otherwise the call was taken (run, or
// queued in the thread's group) and this is its result.
std::optional<ncclResult_t> dispatch(Runtime& runtime, const CollectiveCall& call) noexcept;

// After a call that dispatch() left to the caller, where rules ask for parameters
// (Config::listens): takes what NCCL returned, and returns it or an error of ours.
ncclResult_t call_forwarded(Runtime& runtime, ncclComm_t comm, ncclResult_t result) noexcept;

// The place of a call in the step, which is asked for once, because that counts the call.
struct AskedPlace {
    StepPlace place;
    bool asked = false;
};
// Of a call whose rules ask for its ordinal or for the communicator's role (`plan`,
// Plan::asks_place()): finds them and, as far as they are known, puts the plan of such calls and
// their facts. Errors: of a question to CUDA.
Status find_placed_plan(
    Runtime& runtime, CommState* state, CollectiveCall* call, Plan** plan, AskedPlace* place);

// In mode shadow, around a call on a communicator with contents: the number of what it carries, and
// after a call outside groups what NCCL returned. Errors: those that dispatch() would return.
Result<uint32_t> hear(Runtime& runtime, const CollectiveCall& call, CommState* state);
Status heard(Runtime& runtime, CommState* state, ncclResult_t result);

// After a call outside groups that follow_native() was told of: takes what NCCL returned.
void flag_forwarded(const Runtime& runtime, CommState* state, ncclResult_t result) noexcept;

// A well-formed collective that goes native: its place in the step, which counts it; unsure where
// nobody looks for steps.
StepPlace follow_native(Runtime& runtime, const CollectiveCall& call, CommState* state);

// Of a call that a plan compresses, where only the plan is asked (mode shadow): why the call would
// go native all the same, as dispatch() decides it, and its place. Counts the call as dispatch()
// does.
Result<std::optional<Detour>> would_detour(
    Runtime& runtime, const CollectiveCall& call, CommState* state, Plan* plan, AskedPlace* place);
// A user-made operator of the communicator, or null.
const PreMulScalar* scalar_of(const CommState& state, ncclRedOp_t op) noexcept;

[[nodiscard]] bool in_group() noexcept;
// Of the thread's group, unique in the process; 0 outside. Kept only for a group that asked.
[[nodiscard]] uint64_t group_number() noexcept;
// Takes the calls of a communicator that is being destroyed out of the thread's group.
void forget_queued(const CommState& state) noexcept;
void group_started() noexcept;
// Called for the thread's GroupEnd; closes the real group and runs what was queued. For any but the
// outermost end it only forwards.
ncclResult_t group_end(Runtime& runtime) noexcept;
// The group was simulated: nothing of it runs.
void group_dropped() noexcept;
// A call of the program failed before the real NCCL saw it. In a group that drops the group, the
// real one too, as an error of NCCL's own would: its end returns the error. Returns `error`.
ncclResult_t call_failed(Runtime& runtime, ncclResult_t error) noexcept;

}  // namespace slimwire
