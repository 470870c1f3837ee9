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
// saving, or nothing. A residual of another step is never added. Where none is marked, the saving
// of the weights counts that the first gathers brought, and its step begins at that gather. Until
// that is known, three steps behind a communicator's first call that has state, such calls are
// native there, on all of its ranks: as of its own calls and of what all its ranks told when it was
// made. A communicator that does not gather begins anew; its residuals are loaded when they are
// known.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
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
    // What ranks tell each other at a creation: the number of this run by what this rank finds in
    // the folder, which may be older than what others find, and all take the largest; above it,
    // while it is not known what counts, a hash of the savings with weights. Any thread.
    uint64_t told();
    void at_least_run(uint64_t told);
    // What the communicator goes on with is held until it is decided what counts.
    void created(Session* state);
    // The program marked a step (any thread, outside of groups, while no thread makes calls). The
    // mark that decides what counts waits for communicators that are being made: on other ranks
    // they may be there before theirs.
    void marked(uint64_t step);
    // Whether it is not known what counts.
    [[nodiscard]] bool undecided() const noexcept {
        return undecided_.load(std::memory_order_acquire);
    }
    // Of a communicator that recalls (Session): a collective comes, whose place was not asked for.
    // Waits, which is counted, for what its first gathers brought, where that is not there; an
    // error where it never comes, as other ranks go on by it.
    Status recall(Session* state);
    // The same: a call that has state comes. Whether it must be native, on all ranks alike.
    [[nodiscard]] bool holds(Session* state, Op op);
    // A gather comes, where no step was marked, which may begin a step. Whether its value is
    // wanted.
    bool gathers(Session* state,
                 const StepPosition& place,
                 const std::shared_ptr<GatheredValue>& value);
    // The program itself loaded a state.
    void overruled();
    // Whether a saving is on its way to the disk.
    [[nodiscard]] bool writing();
    // Waits until what is being saved is on the disk, but not long for the device. Nothing is saved
    // afterwards.
    void finish() noexcept;

  private:
    // A gather that came before it was decided.
    struct Arrival {
        uint64_t call = 0;  // of the communicator's collectives, from 0 on
        std::shared_ptr<GatheredValue> value;
    };
    // A communicator that recalls.
    struct Recall {
        bool alike = false;  // its ranks found the same savings with weights
        std::vector<Arrival> arrivals;
        uint64_t until = 0;  // collectives; 0: no call came that has state
        Progress held;       // that it goes on with, if so
    };
    // A complete saving's weights, of a group of ranks or all (weights.h), when the job began.
    struct Saved {
        Saving saving;
        std::optional<int> group;
        SavedWeights weights;
    };
    // Of jobs that mark no steps.
    struct Gathers {
        std::atomic<bool> any{false};  // came that may begin a step
        bool prepared = false;         // memory for a saving was asked for
        // Steps before this job's first, as the saving says that was loaded; and that ended when
        // the last one began.
        uint64_t before = 0, ended = 0;
        uint64_t leader = 0;                     // state_key of the communicator
        std::shared_ptr<GatheredValue> weights;  // of the last one, where it may be needed
    };
    // The saving of what one of the gathers brought, and which one that is.
    struct Match {
        const Saved* saved;
        Arrival arrival;
    };

    [[nodiscard]] const std::string& folder() const noexcept {
        return runtime_.config.settings.state_ring.folder;
    }
    [[nodiscard]] std::optional<Saving> find(std::optional<uint64_t> step) const;
    [[nodiscard]] Result<StateContent> read(const Saving& saving) const;
    bool wait_with(const Saving& saving);
    [[nodiscard]] bool decides_yet();
    void decide(uint64_t step);
    void look_for_weights();
    [[nodiscard]] std::vector<const Saved*> saved_by(const Session& state) const;
    Result<std::optional<Match>> match(const Session& state, const std::vector<Arrival>& arrivals);
    void take_match(const Match& found, Session* state);
    void begin_anew(Session* state);
    void give_up();
    void await_steps(Session* state, Recall* recall);
    void decided();
    void warn_of_no_step();
    [[nodiscard]] std::optional<Saving> next(uint64_t step);
    void drop();

    Runtime& runtime_;
    const int rank_, ranks_;  // the launcher's; ranks_ 0: it said none

    // Of the rest, but for the writer, which is under state_in_use(). Calls of any thread wait for
    // it, and nothing that waits for a device is done meanwhile.
    std::mutex mutex_;
    bool begun_ = false;
    bool overruled_ = false;
    uint64_t found_run_ = 0;       // before the run was agreed on; 0: not looked for
    uint64_t run_ = 0, last_ = 0;  // the step saved last
    std::vector<Saved> saved_;
    uint64_t saved_hash_ = 0;        // 0: there are none
    std::optional<Saving> newest_;   // that communicators agreed on
    std::optional<Saving> waiting_;  // that PendingState has
    std::optional<Saving> from_;     // that was loaded
    std::atomic<bool> undecided_{false};
    std::map<uint64_t, Recall> recalls_;  // by state_key
    Gathers gathers_;

    StateWriter writer_;
};

// gathered_weights.cpp; the ring outlives it.
[[nodiscard]] std::unique_ptr<CallHook> make_gathered_weights(StateRing* ring);

}  // namespace slimwire
