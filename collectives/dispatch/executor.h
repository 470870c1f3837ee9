// Runs compressed calls: begin, phases, end. Used by dispatch for a single call and for the calls a
// group has queued.
//
// A group's calls run in rounds. Round k holds the k-th collective of every communicator, and all
// of them share each phase's NCCL group; then come all sends and receives, of every communicator,
// in one real NCCL group. NCCL too runs a communicator's collectives first and its messages
// together. So the order in which a communicator's exchanges are issued depends on the order of its
// own calls alone, and communicators whose ranks meet in several of them cannot block each other.
#pragma once

#include <optional>
#include <vector>

#include "collectives/dispatch/session.h"

namespace slimwire {

// A compressed call that waits for its turn.
struct QueuedCall {
    CollectiveCall call;
    Session* state = nullptr;
    const Plan* plan = nullptr;
    StepPosition place;  // sure where the plan tells tensors apart by it
    // By value: the program may destroy its operator before the group ends.
    std::optional<PreMulScalar> scalar;
    Choice choice = {};  // of the plan's controller, if `controller` is there
    Controller* controller = nullptr;
    // The call is a hook's own (CallHook::call_behind), of the residuals of `keeper`.
    CallHook* hook = nullptr;
    const PlanEntry* keeper = nullptr;
    CallStats* stats = nullptr;       // of `plan`; null for a hook's own
    MessagePairing::Place pair = {};  // of a message whose direction decides
    bool first = false;               // of its kind: other ranks may have another type
};

// Runs one call that no group holds.
Status run_alone(Runtime& runtime, const QueuedCall& item);
// Makes room for the calls of a group before anything of it is launched: without a memory pool
// growing scratch waits for the device, where a receive of this group would wait for a peer that
// waits for the rest of it.
Status prepare_queue(Runtime& runtime, const std::vector<QueuedCall>& queue, bool beside_native);
// Before the real ncclGroupEnd launches the native calls of a group: forks the work streams of the
// queued calls from the program's, so that a native receive which waits for a peer cannot hold back
// what that peer waits for.
Status fork_work_streams(Runtime& runtime, const std::vector<QueuedCall>& queue);
// Runs the calls of a group. `beside_native`: on the forked streams, joined with the program's at
// the end.
Status run_queue(Runtime& runtime, std::vector<QueuedCall> queue, bool beside_native);

}  // namespace slimwire
