// What connections carried, for reports. Written by the connection's thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace slimwire::net {

// X(name): all counters, of messages and of bytes or nanoseconds.
//   bytes, wire_bytes        as NCCL gave or got them; frames and data given to the wire
//   coded_*                  of messages that were compressed; their bytes before, and of their
//                            pieces without frames
//   flagged_*                of protocols LL and LL128, never compressed; large messages that a
//                            sender looked at
//   timed_*                  what this end's Meter (benefit.h) counted: bytes of messages and the
//                            time it was busy with them
#define SLIMWIRE_NET_COUNTERS(X) \
    X(messages)                  \
    X(bytes)                     \
    X(wire_bytes)                \
    X(coded_messages)            \
    X(coded_bytes)               \
    X(coded_wire_bytes)          \
    X(flagged_messages)          \
    X(flagged_bytes)             \
    X(timed_raw_bytes)           \
    X(timed_raw_ns)              \
    X(timed_coded_bytes)         \
    X(timed_coded_ns)

// Relaxed: totals are read while they grow.
struct Counters {
#define SLIMWIRE_NET_COUNTER(name) std::atomic<uint64_t> name{0};
    SLIMWIRE_NET_COUNTERS(SLIMWIRE_NET_COUNTER)
#undef SLIMWIRE_NET_COUNTER

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
