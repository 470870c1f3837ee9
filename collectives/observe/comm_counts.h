// What is counted of a communicator, in one table: atomics while it lives, numbers in its record,
// in report files (collectives/SCHEMA.md) and in sums over ranks. The calling threads write them,
// the reporter's thread reads them, all relaxed.
#pragma once

#include <cstdint>

namespace slimwire {

template <class Count>
struct CommCounts {
    Count scratch_bytes{0}, residual_bytes{0}, residual_tensors{0};
    Count calls_without_residual{0};  // compressed, without a residual for want of memory
    Count host_waits{0};              // of calls, for what was to be there
    // Answers of peers whose masks were not held, as far as the host knows.
    Count missed_masks{0};
    Count plans{0};  // held now
    // What the private communicator costs; 0 without one.
    Count setup_us{0};             // slimwire's part of the creation, in all
    Count private_setup_us{0};     // of that, making the private communicator
    Count private_connections{0};  // it may open so many, besides NCCL's own ring
    Count private_bytes{0}, first_call_us{0};
    // Of places in the step (tensor_slot.h); 0 where no rule wants them.
    Count step_calls{0};  // of the step that collectives follow now
    Count steps{0};       // followed to their end
    Count placed_calls{0}, unplaced_calls{0};
    // Results of skipped_steps.h: made, of those set, and of those no flags at all.
    Count step_flags{0}, skipped_steps{0}, other_flags{0};
};

// How sums over the ranks of a communicator have a count.
enum class OverRanks : uint8_t { kNot, kSum, kMost };

template <class Count>
struct CommCount {
    const char* name;  // in reports
    Count CommCounts<Count>::*member;
    bool stays;  // of communicators that are gone, too
    OverRanks over_ranks;
};

// In the order of a record.
template <class Count, class Counts = CommCounts<Count>>
inline constexpr CommCount<Count> kCommCounts[] = {
    {"scratch_bytes", &Counts::scratch_bytes, false, OverRanks::kSum},
    {"residual_bytes", &Counts::residual_bytes, false, OverRanks::kSum},
    {"residual_tensors", &Counts::residual_tensors, false, OverRanks::kSum},
    {"unfed_calls", &Counts::calls_without_residual, true, OverRanks::kSum},
    {"host_waits", &Counts::host_waits, true, OverRanks::kNot},
    {"missed_masks", &Counts::missed_masks, true, OverRanks::kSum},
    {"plans", &Counts::plans, false, OverRanks::kNot},
    {"setup_us", &Counts::setup_us, true, OverRanks::kNot},
    {"private_setup_us", &Counts::private_setup_us, true, OverRanks::kNot},
    {"private_connections", &Counts::private_connections, false, OverRanks::kNot},
    {"private_bytes", &Counts::private_bytes, false, OverRanks::kNot},
    {"first_call_us", &Counts::first_call_us, true, OverRanks::kNot},
    {"step_calls", &Counts::step_calls, false, OverRanks::kMost},
    {"steps", &Counts::steps, true, OverRanks::kMost},
    {"placed_calls", &Counts::placed_calls, true, OverRanks::kSum},
    {"unplaced_calls", &Counts::unplaced_calls, true, OverRanks::kSum},
    {"step_flags", &Counts::step_flags, true, OverRanks::kMost},
    {"skipped_steps", &Counts::skipped_steps, true, OverRanks::kMost},
    {"other_flags", &Counts::other_flags, true, OverRanks::kMost},
};

}  // namespace slimwire
