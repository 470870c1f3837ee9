// Device memory that this process holds for its communicators, device by device, and the most it
// may hold (SLIMWIRE_MAX_MEMORY). Scratch is only counted: plans have decided on it, on all ranks
// alike. Residuals ask first, one by one, whatever communicator they belong to (README, "Memory").
// One a process; thread-safe; never called on a path that neither allocates nor frees.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace slimwire {

class MemoryBudget {
  public:
    // Bytes that each device may hold; 0: no limit. Before the first call of the others.
    void set_limit(uint64_t bytes) noexcept { limit_ = bytes; }
    [[nodiscard]] uint64_t limit() const noexcept { return limit_; }

    // Counts `bytes` more on `device` if that stays within the limit; else nothing.
    [[nodiscard]] bool reserve(int device, uint64_t bytes);
    // Counts them whatever the limit.
    void take(int device, uint64_t bytes);
    void give_back(int device, uint64_t bytes);
    [[nodiscard]] uint64_t held(int device) const;
    // Scratch that is reserved when communicators are made: counts as many of the `wanted` bytes as
    // there are in half of what all of it may still have of a device with `total` bytes, and
    // returns how many.
    [[nodiscard]] uint64_t take_scratch(int device, uint64_t wanted, uint64_t total);
    void give_back_scratch(int device, uint64_t bytes);

  private:
    uint64_t limit_ = 0;
    mutable std::mutex mutex_;
    std::map<int, uint64_t> held_, scratch_;
};

}  // namespace slimwire
