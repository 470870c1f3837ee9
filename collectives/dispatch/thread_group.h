// The NCCL group of the calling thread: what of its calls waits for the group's end, and what they
// counted, which is taken back where the group does not run. dispatch() fills it and group_end()
// empties it.
//
// Each thread has its own; none is shared.
#pragma once

#include <utility>
#include <vector>

#include "collectives/dispatch/executor.h"

namespace slimwire {

// Made with the thread's first group and gone with the thread.
struct ThreadGroup {
    uint64_t number = 0;  // of all groups that ask for places; 0 until this one does
    bool has_native = false;
    ncclResult_t failed = ncclSuccess;  // the first error of a call that NCCL did not see
    std::vector<QueuedCall> queued;
    // Whose ordinal a call of this group has raised; without a plan, whose places it has moved.
    std::vector<std::pair<Session*, Plan*>> counted;
    std::vector<std::pair<Session*, PlaceKey>> granted;  // by calls of this group
    std::vector<std::pair<Session*, AccordionTensor*>>
        paced;  // that a call of this group counts for
    // Whose averages a call of this group counts for.
    std::vector<std::pair<Session*, CountedTensor*>> averaged;
    std::vector<std::pair<Session*, StepAhead::Pending>>
        ahead;                      // what is to be done behind calls of this group
    std::vector<Session*> heard;    // whose contents listened to a call of this group
    std::vector<Session*> flagged;  // that a call of this group may give a flag of a step

    // What was counted stands; `ran`: the calls were launched.
    void end_counting(bool ran) noexcept;
    // The calls of a group that did not run never were, on any rank.
    void uncount() noexcept;
};
[[nodiscard]] ThreadGroup& thread_group() noexcept;

// Apart from the group, so that asking costs no look at whether that was made.
inline constinit thread_local int t_group_depth = 0;
[[nodiscard]] inline bool in_group() noexcept {
    return t_group_depth > 0;
}

// Of the thread's group, unique in the process; 0 outside. Kept only for a group that asked.
[[nodiscard]] uint64_t group_number() noexcept;
// Takes the calls of a communicator that is being destroyed out of the thread's group.
void forget_queued(const Session& state) noexcept;
void group_started() noexcept;
// The group was simulated: nothing of it runs.
void group_dropped() noexcept;

}  // namespace slimwire
