// SLIMWIRE_STATE: a job's state is saved beside it every so many marked steps, and found again by
// the job that comes back (saved_steps.h has the folder, README the whole picture).
//
// Saving: in the call that marks the step (state_writer.h). A job that marks no steps, but gathers
// its parameters in each (FSDP, ZeRO-3), is saved in front of the gather that begins a step, as
// repetition finds it, by how many steps ended before. Its savings have in a file what that gather
// brought (weights.h), each group of ranks that gather together its own: a step whose weights are
// those of the step before is in the middle of an accumulation, and not saved.
//
// Coming back: what is newest waits from the first communicator on, so that ranks agree on it, and
// counts only once the program has marked the step of which it is: with another step it is another
// saving, or nothing. A residual of another step is never added. Where none is marked, the first
// call that has state waits for what the first gathers brought: the saving of these weights counts,
// and its step begins at that gather.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/call/step_position.h"
#include "collectives/communicator/process.h"
#include "collectives/dispatch/ring/state_writer.h"
#include "collectives/state/replicated_progress.h"
#include "collectives/state/saved_steps.h"
#include "collectives/state/weights.h"

namespace slimwire {

class CallHook;

class StateRing {
  public:
    // Of a job that compresses. Nothing happens before begin().
    explicit StateRing(Runtime& runtime);
    // As finish().
    ~StateRing();
    StateRing(const StateRing&) = delete;
    StateRing& operator=(const StateRing&) = delete;

    // Before ranks tell each other what they loaded, at every creation; once it reads the saving
    // that waits. What is wrong with the folder or a file is logged.
    void begin();
    // The number of this run by what this rank finds in the folder, which may be older than what
    // others find: all take the largest. Any thread.
    uint64_t next_run();
    void at_least_run(uint64_t run);
    // What the communicator goes on with is held until it is decided what counts.
    void created(Session* state);
    // The program marked a step (any thread, outside of groups, while no thread makes calls).
    void marked(uint64_t step);
    // Whether calls that have state must not come yet: decide() has the answer then.
    [[nodiscard]] bool undecided() const noexcept {
        return undecided_.load(std::memory_order_acquire);
    }
    // A call comes that has state, and no step was marked: what counts is told by weights, or
    // nothing does.
    void decide_without_step();
    // A gather comes, where no step was marked, which may begin a step. Whether its value is
    // wanted.
    bool gathers(Session* state,
                 const StepPosition& place,
                 const std::shared_ptr<GatheredValue>& value);
    // The program itself loaded a state.
    void overruled();
    // Whether gathers came by whose values decide_without_step() can tell.
    [[nodiscard]] bool gathered() const noexcept { return gathers_.any; }
    // Whether a saving is on its way to the disk.
    [[nodiscard]] bool writing();
    // Waits until what is being saved is on the disk, but not long for the device. Nothing is saved
    // afterwards.
    void finish() noexcept;

  private:
    // A gather that came before it was decided.
    struct Arrival {
        uint64_t state_key = 0;
        uint64_t call = 0;  // of the communicator's collectives, from 0 on
        std::optional<int> group;
        std::shared_ptr<GatheredValue> value;
    };
    // Of jobs that mark no steps.
    struct Gathers {
        std::atomic<bool> any{false};  // came that may begin a step
        std::vector<Arrival> arrivals;
        // Steps before this job's first, as the saving says that was loaded; and that ended when
        // the last one began.
        uint64_t before = 0, ended = 0;
        uint64_t leader = 0;                     // state_key of the communicator
        std::shared_ptr<GatheredValue> weights;  // of the last one, where it may be needed
    };
    // The saving of what one of the gathers brought, and which one that is.
    struct Match {
        Saving saving;
        Arrival arrival;
        SavedWeights weights;
    };

    [[nodiscard]] const std::string& folder() const noexcept {
        return runtime_.config.settings.state_ring.folder;
    }
    [[nodiscard]] std::optional<Saving> find(std::optional<uint64_t> step) const;
    [[nodiscard]] Result<StateContent> read(const Saving& saving) const;
    bool wait_with(const Saving& saving);
    void decide(uint64_t step);
    std::optional<Match> match(const std::vector<Arrival>& arrivals);
    Status await(const Arrival& arrival);
    void take_match(const Match& found);
    void warn_of_no_step();
    void save(uint64_t step, const std::optional<GatheredStep>& gathered);
    void keep();
    void drop();

    Runtime& runtime_;
    const int rank_, ranks_;  // the launcher's; ranks_ 0: it said none

    // Under state_in_use().
    bool begun_ = false;
    uint64_t found_run_ = 0;         // before the run was agreed on; 0: not looked for
    uint64_t run_ = 0, last_ = 0;    // the step saved last
    std::optional<Saving> waiting_;  // that PendingState has
    std::optional<Saving> from_;     // that was loaded
    std::atomic<bool> undecided_{false};
    std::map<uint64_t, Progress> held_;  // of communicators, by checkpoint_key
    Gathers gathers_;

    StateWriter writer_;
};

// gathered_weights.cpp; the ring outlives it.
[[nodiscard]] std::unique_ptr<CallHook> make_gathered_weights(StateRing* ring);

}  // namespace slimwire
