// Saving and loading what a rank's error feedback owes (slimwire_save_state, slimwire_load_state):
// the residuals of tensors that are known by their place in the step, how often random numbers
// were drawn, and how far controllers and counts are, so that a job that ends and one
// that goes on together give the bits of one that did not end. What a rank loads alone is its own,
// and it sends what it always would.
//
// Both wait, a bounded time, for compressed calls that are still running. No other thread may be
// making calls meanwhile. Any thread; one at a time goes on.
#pragma once

#include <mutex>
#include <string>

#include "collectives/communicator/process.h"
#include "collectives/state/state_file.h"

namespace slimwire {

struct StateOutcome {
    enum class Kind : uint8_t {
        kDone,
        kPartial,  // without what `text` says
        kNothing,  // there is no such state, as `text` says
    };
    Kind kind = Kind::kDone;
    std::string text;
};

inline constexpr uint64_t kStatePatienceUs = 60'000'000;

// `pattern` is a path with %h, %r, %p as a report's (log.h); %r is the launcher's rank, else that
// of this process in its largest communicator. `runtime` is null before the first NCCL call.
// Errors: kInvalidArgument (the pattern), kInvalidUsage (the file is another job's or damaged;
// calls do not end), else the file system's or the device's.
Result<StateOutcome> save_state(Runtime* runtime,
                                const char* pattern,
                                uint64_t patience_us = kStatePatienceUs);
// Checks the whole file before it changes anything. Residuals of tensors that the file lacks are
// zero from here on; those of tensors known by their address stay.
Result<StateOutcome> load_state(Runtime* runtime,
                                const char* pattern,
                                uint64_t patience_us = kStatePatienceUs);

// The program marked a step (slimwire_mark_step).
void step_marked(Runtime& runtime, uint64_t step);

// The parts of it for the ring of SLIMWIRE_STATE (state_ring.h). Who saves or loads holds this, and
// may wait meanwhile; no call of NCCL waits for it.
[[nodiscard]] std::mutex& state_in_use() noexcept;
// Waits until the compressed calls of all communicators are done.
Status settle(Runtime* runtime, uint64_t patience_us = kStatePatienceUs);
// The file, if it is this rank's of such a job; errors as of load_state().
Result<StateContent> read_own_state(Runtime* runtime,
                                    uint64_t config_hash,
                                    const StateReader& reader);
// Tensors and communicators take it from here on, and nothing of what was loaded before. `idle`: no
// compressed call is running; else communicators whose captured calls draw go on with their own
// count of draws, which only the device knows.
Status take_state(Runtime* runtime, StateContent content, bool idle = true);

}  // namespace slimwire
