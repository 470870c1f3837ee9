#include "collectives/communicator/registry.h"

#include <utility>

namespace slimwire {
namespace {

struct LastLookup {
    ncclComm_t comm = nullptr;
    Communicator* state = nullptr;
    uint64_t generation = 0;
};
thread_local constinit LastLookup t_last;

}  // namespace

Communicator* CommRegistry::find(ncclComm_t comm) noexcept {
    const uint64_t generation = generation_.load(std::memory_order_acquire);
    if (t_last.comm == comm && t_last.generation == generation) {
        return t_last.state;
    }
    std::lock_guard lock(mutex_);
    const auto found = states_.find(comm);
    t_last = {comm, found == states_.end() ? nullptr : found->second.get(),
              generation_.load(std::memory_order_relaxed)};
    return t_last.state;
}

Communicator* CommRegistry::add(std::unique_ptr<Communicator> state) {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    auto& slot = states_[state->comm];
    slot = std::move(state);
    return slot.get();
}

std::unique_ptr<Communicator> CommRegistry::remove(ncclComm_t comm) {
    std::lock_guard lock(mutex_);
    const auto found = states_.find(comm);
    if (found == states_.end()) {
        return nullptr;
    }
    generation_.fetch_add(1, std::memory_order_release);
    std::unique_ptr<Communicator> state = std::move(found->second);
    states_.erase(found);
    return state;
}

void CommRegistry::retire(std::unique_ptr<Communicator> state) {
    std::lock_guard lock(mutex_);
    retired_.push_back(std::move(state));
}

uint64_t CommRegistry::next_ordinal(uint64_t members_hash) {
    std::lock_guard lock(mutex_);
    return ordinals_[members_hash]++;
}

}  // namespace slimwire
