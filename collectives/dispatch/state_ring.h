// SLIMWIRE_STATE: a job's state is saved beside it every so many marked steps, and found again by
// the job that comes back (saved_steps.h has the folder, README the whole picture).
//
// Saving: the call that marks the step enqueues copies of all residuals to pinned memory, on a
// stream of its own of each device, behind the calls so far and before the calls to come, and
// returns; a thread writes the file when they are there. It waits for the calls so far where
// something has to be read from the device: controllers (`StateKind` 2 and 7), draws of captured
// calls. The first saving, and one that is larger, allocates the pinned memory.
//
// Coming back: what is newest waits from the first communicator on, so that ranks agree on it, and
// counts only once the program has marked the step of which it is: with another step it is another
// saving, or nothing. A residual of another step is never added.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator/process.h"
#include "collectives/dispatch/gather_state.h"
#include "collectives/state/replicated_progress.h"
#include "collectives/state/saved_steps.h"

namespace slimwire {

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
    // A call comes that has state, and no step was marked: nothing counts.
    void decide_without_step();
    // The program itself loaded a state.
    void overruled();
    // Whether a saving is on its way to the disk.
    [[nodiscard]] bool writing();
    // Waits until what is being saved is on the disk, but not long for the device. Nothing is saved
    // afterwards.
    void finish() noexcept;

  private:
    // One that is being saved: tensors on the device are at `at` in the pinned memory.
    struct Write {
        Saving saving;
        std::optional<Saving> from;  // from_ then
        GatheredState all;
        std::vector<uint64_t> at;
    };
    struct OfDevice {
        cudaStream_t stream = nullptr;
        cudaEvent_t copied = nullptr;  // all of the last saving
    };

    [[nodiscard]] const std::string& folder() const noexcept {
        return runtime_.config.settings.state_ring.folder;
    }
    [[nodiscard]] std::optional<Saving> find(std::optional<uint64_t> step) const;
    [[nodiscard]] Result<StateContent> read(const Saving& saving) const;
    bool wait_with(const Saving& saving);
    void decide(uint64_t step);
    void keep();
    void drop();
    Result<cudaStream_t> stream_of(int device);
    Status reserve(uint64_t bytes);
    Status enqueue_copies(GatheredState& all, Write* write);
    Status chain_copies(bool before);
    Result<std::unique_ptr<Write>> copy(uint64_t step);
    void start_thread();
    void run() noexcept;
    Status write(const Write& job, size_t* waiting) const;

    Runtime& runtime_;
    const int rank_, ranks_;  // the launcher's; ranks_ 0: it said none

    // Under state_in_use(), but for what the thread has.
    bool begun_ = false;
    uint64_t found_run_ = 0;         // before the run was agreed on; 0: not looked for
    uint64_t run_ = 0, last_ = 0;    // the step saved last
    std::optional<Saving> waiting_;  // that PendingState has
    std::optional<Saving> from_;     // that was loaded
    std::atomic<bool> undecided_{false};
    std::map<uint64_t, Progress> held_;  // of communicators, by checkpoint_key

    std::map<int, OfDevice> devices_;
    std::byte* pinned_ = nullptr;
    uint64_t pinned_bytes_ = 0;
    std::atomic<uint64_t> stride_{1};  // of so many savings one, since a disk took longer

    std::mutex mutex_;  // of the rest
    std::condition_variable changed_;
    std::unique_ptr<Write> job_;  // the thread's until it is null
    std::thread thread_;
    std::atomic<bool> stop_{false};
};

}  // namespace slimwire
