// ncclCommSplit on a thread of its own, for slimwire's private communicators: whoever waits for it
// can give up, when the program does or at a deadline. Used by creation.cpp and recognition.cpp.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
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

// Splits in one group, on a thread of their own, so that whoever waits for it can give up. NCCL may
// store handles in it as long as the thread runs.
struct Split {
    struct Part {
        ncclComm_t parent;
        int color, rank;
        ncclComm_t made = nullptr;
        // One that shares with what is split off: the private one is made of an id.
        const Communicator* sharing = nullptr;
        std::optional<ncclUniqueId> id = {};
    };
    const RealNccl& nccl;
    const DeviceApi& api;
    int device;
    std::vector<Part> parts;
    std::mutex mutex;
    std::condition_variable ended;
    bool done = false, left = false;  // guarded by the mutex
    Status status;                    // once it is done or left

    void run();
    Status make();
};
std::shared_ptr<Split> split_of(Runtime& runtime, const Communicator& first);

// Larger communicators take NCCL longer.
[[nodiscard]] uint64_t split_timeout_us(const Runtime& runtime);

// Waits until NCCL did its part, not after `deadline_us` of steady_us(); an error when the program
// gives the creation up. `split->status` says whether NCCL made them all in time.
Status run_split(const std::shared_ptr<Split>& split, uint64_t deadline_us, AbortWatch* watch);

// Counts what the private communicator took: time since `began_us`, memory of `free_before`.
void note_private(const DeviceApi& api,
                  Communicator* state,
                  uint64_t began_us,
                  uint64_t free_before);

}  // namespace slimwire
