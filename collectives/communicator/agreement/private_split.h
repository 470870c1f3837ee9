// Calls of NCCL on a thread of their own, such as ncclCommSplit for slimwire's private
// communicators: whoever waits for them can give up, when the program does or at a deadline. Used
// by creation.cpp, lifecycle.cpp, recognition.cpp and dispatch/timing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/process.h"

namespace slimwire {

inline constexpr char kNotHeard[] =
    "ranks did not hear of each other in time (does work of another communicator wait for a rank "
    "that makes this one?)";

// A thread on which the program's signals do not arrive.
Status start_detached(const std::function<void()>& work);

// Work on a thread of its own, which whoever waits for it can leave to it.
struct Leavable {
    virtual ~Leavable() = default;

    std::mutex mutex;
    std::condition_variable ended;
    bool done = false, left = false;  // guarded by the mutex
    Status status;                    // once it is done or left

    void run();

  private:
    virtual Status work() = 0;
    // On the thread, at the end of work that was left meanwhile.
    virtual void clean_up() = 0;
};
// Waits until the work ended, not after `deadline_us` of steady_us(), where it is left with a
// status that says so; an error when the program gives the creation up, which leaves it, too.
Status run_leavable(const std::shared_ptr<Leavable>& one, uint64_t deadline_us, AbortWatch* watch);

// What NCCL is asked of a private communicator while it is asked the same of the program's: both
// wait for their work, and that of one may be behind the other's. Not valid: nothing.
using Beside = std::future<void>;
Beside ask_beside(Runtime& runtime,
                  const Communicator& state,
                  const std::function<ncclResult_t()>& ask) noexcept;
// After the real call: waits for it, not for long.
void await(const Beside& beside) noexcept;

// Splits in one group. NCCL may store handles in it as long as the thread runs.
struct Split final : Leavable {
    struct Part {
        ncclComm_t parent;
        int color, rank;
        Configured configured = {};  // the parent
        ncclComm_t made = nullptr;
        // Of one that shares with what is split off: the private one is made of an id, with as many
        // ranks.
        int sharing_ranks = 0, device = 0;
        std::optional<ncclUniqueId> id = {};
    };
    Split(Runtime& runtime, const Communicator& first)
        : nccl(*first.nccl), api(runtime.api()), device(first.device) {}
    ~Split() override;
    const RealNccl& nccl;
    const DeviceApi& api;
    const int device;
    std::vector<Part> parts;
    // NCCL may still store handles in the parts, which then stay: it goes on in the background, and
    // nobody has seen the end.
    bool unsettled = false;

  private:
    Status work() override;
    void clean_up() override;
};

// The same until NCCL has done a split in the background, too, which is an error at the deadline:
// the communicators that it splits stay busy. The private ones may still be, and it is unsettled.
Status run_split(const std::shared_ptr<Split>& split, uint64_t deadline_us, AbortWatch* watch);

// Larger communicators take NCCL longer.
[[nodiscard]] uint64_t split_timeout_us(const Runtime& runtime);

// Aborts the private communicator, if there is one.
void abort_private(Communicator* state);

// Counts what the private communicator took: time since `began_us`, memory of `free_before`.
void note_private(const DeviceApi& api,
                  Communicator* state,
                  uint64_t began_us,
                  uint64_t free_before);

}  // namespace slimwire
