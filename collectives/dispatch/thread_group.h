// The NCCL group of the calling thread: which of its calls wait for the group's end, and a journal
// of what they changed, for a group that does not run. dispatch() fills it and group_end() empties
// it.
//
// Each thread has its own; none is shared.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "collectives/communicator/undo_journal.h"
#include "collectives/dispatch/call_types.h"
#include "collectives/dispatch/executor.h"
#include "collectives/dispatch/windows.h"

namespace slimwire {

// Made with the thread's first group and gone with the thread.
struct ThreadGroup {
    const RealNccl* nccl = nullptr;  // whose group it is, since the first; null before
    uint64_t number = 0;             // of all groups that ask for places; 0 until this one does
    bool has_native = false;
    std::vector<std::pair<Session*, cudaStream_t>> native_streams;  // of its native calls
    ncclResult_t failed = ncclSuccess;  // the first error of a call that NCCL did not see
    std::vector<QueuedCall> queued;
    UndoJournal journal;
    std::vector<std::pair<Session*, SymmetricWindow>> windows;  // that its end registers
    std::vector<ClaimedCall> claimed;                           // whose types its end tells

    // What the calls changed stands. `result`: of the group.
    void keep(ncclResult_t result) noexcept;
    // The calls never were.
    void undo() noexcept;
};
[[nodiscard]] ThreadGroup& thread_group() noexcept;

// Apart from the group, so that asking costs no look at whether that was made.
inline constinit thread_local int t_group_depth = 0;
[[nodiscard]] inline bool in_group() noexcept {
    return t_group_depth > 0;
}

// No compressed call waits for the end of the thread's group.
[[nodiscard]] inline bool none_queued() noexcept {
    return !in_group() || thread_group().queued.empty();
}

// Of the thread's group, unique in the process; 0 outside. Kept only for a group that asked.
[[nodiscard]] uint64_t number_of_group() noexcept;
[[nodiscard]] inline uint64_t group_number() noexcept {
    return in_group() ? number_of_group() : 0;
}
// A call that is about to be made in the thread's group or alone.
[[nodiscard]] inline CallSite site_of(const Runtime& runtime,
                                      const CollectiveCall& call,
                                      Session* state,
                                      const StepPosition& place) noexcept {
    return {runtime.api(), *state, state->progress,
            call,          place,  in_group() ? &thread_group().journal : nullptr};
}
// The group has a native call.
void note_native(const CollectiveCall& call, Session* state);
// The streams of each communicator of the group that compresses calls and is on several. To NCCL
// such a group is on all of them: it begins when each is there, and each goes on when it has ended.
using GroupStreams = std::map<Session*, std::vector<cudaStream_t>>;
[[nodiscard]] GroupStreams several_streams(const ThreadGroup& group);
// Lets the streams of each communicator wait for one another.
Status join_streams(Runtime& runtime, const GroupStreams& several);
// Takes the calls of a communicator that is being destroyed out of the thread's group.
void forget_queued(const Session& state) noexcept;
void group_started(const RealNccl& nccl) noexcept;
// The group was simulated: nothing of it runs.
void group_dropped(const RealNccl& nccl) noexcept;
// Where a process has several NCCLs, before a call for one of them: each has its own groups, and
// those of the others are put aside.
void enter_groups_of(const RealNccl& nccl);

}  // namespace slimwire
