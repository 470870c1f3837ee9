// Takes a call and runs it, or queues it in the thread's group (thread_group.h), or leaves it to
// the caller (fallback.h says why). Called by plugin/preload only, after re-entry was ruled out.
//
// Compressed calls of a group run after its native part was launched, one after the other for each
// communicator and side by side over communicators, whatever the group's composition: the order in
// which a communicator's private exchanges are issued depends on the order of its calls alone.
#pragma once

#include <memory>
#include <optional>

#include "collectives/call/call.h"
#include "collectives/communicator/process.h"

namespace slimwire {

struct Session;

// The process's runtime (Runtime::get), with what dispatch keeps in it.
[[nodiscard]] std::unique_ptr<CommunicatorListener> make_dispatch_state(Runtime& runtime);
[[nodiscard]] inline Runtime* process_runtime(const void* caller) noexcept {
    return Runtime::get(caller, make_dispatch_state);
}

// Empty: the caller forwards the call to the real NCCL. Otherwise the call was taken (run, or
// queued in the thread's group) and this is its result.
std::optional<ncclResult_t> dispatch(Runtime& runtime, const CollectiveCall& call) noexcept;

// After a call that dispatch() left to the caller, where rules ask for parameters
// (Config::listens): takes what NCCL returned, and returns it or an error of ours.
ncclResult_t call_forwarded(Runtime& runtime, ncclComm_t comm, ncclResult_t result) noexcept;

// In mode shadow, around a call on a communicator with contents: the number of what it carries, and
// after a call outside groups what NCCL returned. Errors: those that dispatch() would return.
Result<uint32_t> hear(Runtime& runtime, const CollectiveCall& call, Session* state);
Status heard(Runtime& runtime, Session* state, ncclResult_t result);

// After a call outside groups that follow_native() was told of: takes what NCCL returned.
void flag_forwarded(const Runtime& runtime, Session* state, ncclResult_t result) noexcept;

// Called for the thread's GroupEnd of `nccl`; closes the real group and runs what was queued. For
// any but the outermost end it only forwards.
ncclResult_t group_end(Runtime& runtime, const RealNccl& nccl) noexcept;

}  // namespace slimwire
