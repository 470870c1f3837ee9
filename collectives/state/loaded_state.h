// What was loaded (slimwire_load_state) and waits: residuals for the first call of their tensor,
// which may be long after, when the communicator and the plan are there; progress for the
// communicator. One a process, made without
// a runtime, so that a program may load before its first NCCL call. Thread-safe; host memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/state/replicated_progress.h"
#include "collectives/state/state_file.h"

namespace slimwire {

struct Communicator;

class PendingState {
  public:
    static PendingState& instance();

    // What waits from now on; what waited before is forgotten.
    void replace(StateContent content);
    // Whether anything was ever loaded. Wait-free.
    [[nodiscard]] bool loaded() const noexcept { return loaded_.load(std::memory_order_acquire); }

    // The residuals of a tensor, which wait no more; null where there are none, or where they are
    // of another shape or size and cannot be used: `misfit` tells.
    struct Loaded {
        std::shared_ptr<const std::byte[]> held;
        bool misfit = false;
        double loss_scale = 0;  // as StateTensor's
    };
    Loaded take(const LastingTensor& tensor, uint64_t shape, uint64_t bytes);
    [[nodiscard]] bool waits(const LastingTensor& tensor) const;
    // Progress of the communicator's tensors, which waits no more.
    [[nodiscard]] ProgressRecords take_progress(uint64_t comm);
    // The communicator as it was saved; zeros where nothing was loaded for it.
    [[nodiscard]] StateComm comm(uint64_t key) const;
    // The same, or of atoms of all ranks.
    [[nodiscard]] StateComm comm_of(const Communicator& communicator) const;

    // The atoms of a tensor, which wait no more. `tensor`: under atoms_key().
    struct Atoms {
        struct One {
            std::shared_ptr<const std::byte[]> held;  // null: there is none
            uint64_t bytes = 0;
            double loss_scale = 0;
        };
        One owed, by_sums, alike;
    };
    [[nodiscard]] Atoms take_atoms(const LastingTensor& tensor);
    [[nodiscard]] bool atoms_wait(const LastingTensor& tensor) const;
    // What still waits, for another save: calls use(tensors, bytes of each).
    template <class Use>
    void with_rest(const Use& use) const {
        const std::lock_guard lock(mutex_);
        for (const auto& [of, waiting] : waiting_) {
            use(StateTensor{of.first, waiting.shape, waiting.bytes, waiting.kind,
                            waiting.loss_scale},
                waiting.held.get());
        }
    }
    // Communicators of the loaded state, as it has them.
    [[nodiscard]] std::vector<StateComm> comms() const;

  private:
    struct Waiting {
        uint64_t shape = 0, bytes = 0;
        StateKind kind = StateKind::kResiduals;
        double loss_scale = 0;
        std::unique_ptr<std::byte[]> held;
    };
    std::atomic<bool> loaded_{false};
    mutable std::mutex mutex_;
    std::map<std::pair<LastingTensor, StateKind>, Waiting> waiting_;  // by record_of()
    std::map<uint64_t, StateComm> comms_;
};

}  // namespace slimwire
