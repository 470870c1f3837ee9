// From NCCL handles to communicators. Thread-safe; a look-up takes no lock on a repeat.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "collectives/communicator/communicator.h"

namespace slimwire {

class CommRegistry {
  public:
    // Null for a handle that slimwire does not know. No lock and no allocation when the thread's
    // last look-up was for the same handle and no communicator came or went since.
    [[nodiscard]] Communicator* find(ncclComm_t comm) noexcept;
    Communicator* add(std::unique_ptr<Communicator> state);
    // Takes the state out; null when unknown.
    std::unique_ptr<Communicator> remove(ncclComm_t comm);
    // Keeps the state of an aborted communicator: another thread may still be looking at it.
    void retire(std::unique_ptr<Communicator> state);
    // Calls use(Communicator&) of each, with nothing coming or going meanwhile.
    template <class Use>
    void for_each(const Use& use) {
        const std::lock_guard lock(mutex_);
        for (const auto& [comm, state] : states_) {
            use(*state);
        }
    }
    // Number of communicators made so far with these members; makes the key of the next distinct.
    uint64_t next_ordinal(uint64_t members_hash);

  private:
    std::mutex mutex_;
    std::atomic<uint64_t> generation_{1};
    std::unordered_map<ncclComm_t, std::unique_ptr<Communicator>> states_;
    std::unordered_map<uint64_t, uint64_t> ordinals_;
    std::vector<std::unique_ptr<Communicator>> retired_;
};

}  // namespace slimwire
