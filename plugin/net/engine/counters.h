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
    std::atomic<uint64_t> coded_wire_bytes{0};  // of their pieces, without frames
    // Of protocols LL and LL128, never compressed; large messages that a sender looked at.
    std::atomic<uint64_t> flagged_messages{0};
    std::atomic<uint64_t> flagged_bytes{0};
    // What this end's Meter (benefit.h) counted: bytes of messages and the time it was busy with
    // them.
    std::atomic<uint64_t> timed_raw_bytes{0}, timed_raw_ns{0};
    std::atomic<uint64_t> timed_coded_bytes{0}, timed_coded_ns{0};

    // `busy_ns` as Meter::finished() gives it.
    void add_timed(bool coded, uint64_t bytes_of_message, uint64_t busy_ns) noexcept {
        if (busy_ns > 0) {
            add(coded ? timed_coded_bytes : timed_raw_bytes, bytes_of_message);
            add(coded ? timed_coded_ns : timed_raw_ns, busy_ns);
        }
    }

    static void add(std::atomic<uint64_t>& counter, uint64_t value) noexcept {
        // One writer: no locked instruction is needed.
        counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
    }
};

}  // namespace slimwire::net
