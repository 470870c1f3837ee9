#include "collectives/communicator/memory_budget.h"

#include <algorithm>

namespace slimwire {

bool MemoryBudget::reserve(int device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    uint64_t& held = held_[device];
    if (limit_ != 0 && (bytes > limit_ || held > limit_ - bytes)) {
        return false;
    }
    held += bytes;
    return true;
}

void MemoryBudget::take(int device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    held_[device] += bytes;
}

void MemoryBudget::give_back(int device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    uint64_t& held = held_[device];
    held -= std::min(held, bytes);
}

uint64_t MemoryBudget::held(int device) const {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(device);
    return found == held_.end() ? 0 : found->second;
}

}  // namespace slimwire
