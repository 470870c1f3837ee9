// Residuals that were loaded (slimwire_load_state) and wait for the first call of their tensor:
// that may be long after, when the communicator and the plan are there. One a process, made without
// a runtime, so that a program may load before its first NCCL call. Thread-safe; host memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/state_file.h"

namespace slimwire {

class PendingState {
  public:
    static PendingState& instance();

    // What waits from now on; what waited before is forgotten.
    void replace(StateContent content);
    // Whether anything was ever loaded. Wait-free.
    [[nodiscard]] bool loaded() const noexcept { return loaded_.load(std::memory_order_acquire); }

    // The residuals of a tensor, which wait no more; null where there are none. Where they are of
    // another shape or size they cannot be used: `misfit` tells.
    std::unique_ptr<std::byte[]> take(const LastingTensor& tensor,
                                      uint64_t shape,
                                      uint64_t bytes,
                                      bool* misfit);
    // StateComm::moment of the communicator; 0 where nothing was loaded for it.
    [[nodiscard]] uint64_t moment(uint64_t comm) const;
    // Calls of the communicator that had drawn random numbers when its state was saved.
    [[nodiscard]] std::array<uint32_t, 2> drawn(uint64_t comm) const;
    // What still waits, for another save: calls use(tensors, bytes of each).
    template <class Use>
    void with_rest(const Use& use) const {
        const std::lock_guard lock(mutex_);
        for (const auto& [tensor, waiting] : waiting_) {
            use(StateTensor{tensor, waiting.shape, waiting.bytes, waiting.shared},
                waiting.residuals.get());
        }
    }
    // Communicators of the loaded state, as it has them.
    [[nodiscard]] std::vector<StateComm> comms() const;

  private:
    struct Waiting {
        uint64_t shape = 0, bytes = 0;
        bool shared = false;
        std::unique_ptr<std::byte[]> residuals;
    };
    std::atomic<bool> loaded_{false};
    mutable std::mutex mutex_;
    std::map<LastingTensor, Waiting> waiting_;
    std::map<uint64_t, StateComm> comms_;
};

}  // namespace slimwire
