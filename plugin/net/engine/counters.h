// What connections carried, for reports. Written by the connection's thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace slimwire::net {

// Relaxed: totals are read while they grow.
struct Counters {
    std::atomic<uint64_t> messages{0};
    std::atomic<uint64_t> bytes{0};       // as NCCL gave or got them
    std::atomic<uint64_t> wire_bytes{0};  // frames and data given to the wire
    std::atomic<uint64_t> coded_messages{0};
    std::atomic<uint64_t> coded_bytes{0};       // of these messages, before
    std::atomic<uint64_t> flagged_messages{0};  // of protocols LL and LL128, never compressed

    static void add(std::atomic<uint64_t>& counter, uint64_t value) noexcept {
        // One writer: no locked instruction is needed.
        counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
    }
};

}  // namespace slimwire::net
