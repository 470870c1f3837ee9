// Puts a saving of SLIMWIRE_STATE on the disk beside the job: a call enqueues copies of all that is
// kept to pinned memory, on a stream of its own of each device, behind the calls so far and before
// the calls to come, and returns; a thread writes the file when they are there.
//
// Of one that marks a step (state_ring.h) the call waits for the calls so far where something has
// to be read from the device: controllers (`StateKind` 2 and 7), draws of captured calls; the first
// one, and one that is larger, allocates the pinned memory. In front of a gather nothing waits: the
// thread allocates, before it is needed, and what would have to be read is not saved.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "codecs/ops/measure.h"
#include "collectives/communicator/device_memory.h"
#include "collectives/communicator/host_copies.h"
#include "collectives/communicator/process.h"
#include "collectives/dispatch/gather_state.h"
#include "collectives/state/saved_steps.h"
#include "collectives/state/weights.h"

namespace slimwire {

// What a gather brought; it is there later.
struct GatheredValue {
    HostValue measured{sizeof(Measured)};
    std::atomic<bool> failed{false};
    [[nodiscard]] bool there() const noexcept {
        return failed || measured.there.load(std::memory_order_acquire);
    }
    // Of one that is there; none where it failed.
    [[nodiscard]] std::optional<WeightsPrint> print() const;
};

// The gather that a saving is in front of.
struct GatheredStep {
    std::shared_ptr<GatheredValue> weights, before;  // that it brings, and that of a step before
    uint32_t calls = 0;                              // collectives of a step
    uint64_t path = 0;
    std::optional<int> group;  // of ranks that gather together, if not all (weights.h)
    bool tells = false;        // this rank writes the file of weights
};

void warn_of_ring(const std::string& text);

class StateWriter {
  public:
    StateWriter(Runtime& runtime, int rank) : runtime_(runtime), rank_(rank) {}
    // As finish().
    ~StateWriter();
    StateWriter(const StateWriter&) = delete;
    StateWriter& operator=(const StateWriter&) = delete;

    // Whether the step is one of those that are saved.
    [[nodiscard]] bool due(uint64_t step) const noexcept;
    // Whether the saving before is still being written, which is said; then fewer are due.
    bool late(uint64_t step);
    // Under state_in_use(), where it is not late. `from`: make_room()'s. What fails is said.
    void save(const Saving& saving,
              const std::optional<Saving>& from,
              const std::optional<GatheredStep>& gathered);
    // The same; a saving in front of a gather comes later, for which the thread gets memory.
    void prepare();
    // Whether a saving is on its way to the disk, or memory for one on its way here.
    [[nodiscard]] bool writing();
    // Waits until what is being saved is on the disk, but not long for the device. Nothing is saved
    // afterwards.
    void finish() noexcept;
    [[nodiscard]] bool finished() const noexcept { return stop_; }

  private:
    // One that is being saved: tensors on the device are at `at` in the pinned memory.
    struct Job {
        Saving saving;
        std::optional<Saving> from;
        std::optional<GatheredStep> gathered;
        GatheredState all;
        std::vector<uint64_t> at;
    };
    // Pinned memory that the thread is to get; 0: none.
    struct Wanted {
        uint64_t bytes = 0;
        int device = 0;
        Status made;  // of the last one
    };
    struct OfDevice {
        cudaStream_t stream = nullptr;
        cudaEvent_t copied = nullptr;  // all of the last saving
    };

    [[nodiscard]] const std::string& folder() const noexcept {
        return runtime_.config.settings.state_ring.folder;
    }
    std::string fewer();
    Result<cudaStream_t> stream_of(int device);
    Result<Pinned> allocate(uint64_t bytes) const;
    void free(Pinned* pinned) const noexcept;
    [[nodiscard]] bool busy() const;
    Status reserve(uint64_t bytes, int device);
    Status await_reserved();
    Status enqueue_copies(GatheredState& all, Job* job);
    Status chain_copies(bool before);
    Status copy(Job* job);
    void start_thread();
    void run() noexcept;
    void allocate_wanted(std::unique_lock<std::mutex>* lock) noexcept;
    void write_job() noexcept;
    Status wait_for(const std::function<Result<bool>()>& there) const;
    Result<SavedWeights> weights_of(const GatheredStep& step) const;
    Status write(const Job& job, size_t* waiting) const;

    Runtime& runtime_;
    const int rank_;
    std::map<int, OfDevice> devices_;
    std::atomic<uint64_t> stride_{1};  // of so many savings one, since a disk took longer
    // The thread's while job_ or wanted_ are there, else of who saves.
    Pinned pinned_;

    std::mutex mutex_;  // of the rest
    std::condition_variable changed_;
    std::unique_ptr<Job> job_;  // the thread's until it is null
    Wanted wanted_;
    std::thread thread_;
    std::atomic<bool> stop_{false};
};

}  // namespace slimwire
