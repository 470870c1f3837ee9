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

uint64_t MemoryBudget::take_scratch(int device, uint64_t wanted, uint64_t total) {
    constexpr uint64_t kOfDevice = 20, kOfLimit = 2, kGranule = 256;
    const std::lock_guard lock(mutex_);
    uint64_t& scratch = scratch_[device];
    const uint64_t most =
        limit_ != 0 ? std::min(total / kOfDevice, limit_ / kOfLimit) : total / kOfDevice;
    // Half of what is left, so that later communicators have some, too.
    const uint64_t left = (most - std::min(most, scratch)) / 2;
    const uint64_t taken = std::min(wanted, left) / kGranule * kGranule;
    scratch += taken;
    held_[device] += taken;
    return taken;
}

void MemoryBudget::give_back_scratch(int device, uint64_t bytes) {
    give_back(device, bytes);
    const std::lock_guard lock(mutex_);
    uint64_t& scratch = scratch_[device];
    scratch -= std::min(scratch, bytes);
}

uint64_t MemoryBudget::held(int device) const {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(device);
    return found == held_.end() ? 0 : found->second;
}

}  // namespace slimwire
