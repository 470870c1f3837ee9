// What the process's connections carried, by peer: counters of the live ones and totals of those
// that are closed. Reports are made of it (plugin/net/report).
//
// Thread contract: everything from any thread. Opening and closing a connection take a mutex,
// counting takes none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace slimwire::net {

// What connections carried, for reports. Written by the connection's thread, read by any.
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

enum class Direction : uint8_t { kSend, kReceive };

// The connections that are added up: those to one host, over one device, in one direction.
struct PeerKey {
    Direction direction;
    std::string host;    // address of the peer, without port; "folded" for many
    std::string wire;    // what carries the messages: "ucx tcp", "chain: Socket"
    std::string device;  // ours

    [[nodiscard]] auto operator<=>(const PeerKey&) const = default;
};

// `peer` as a wire names it (WireConnection::peer): "10.0.0.2:4711 (ucx tcp)".
[[nodiscard]] PeerKey peer_key(Direction direction, const std::string& peer, const char* device);

// Counters as they were read.
struct PeerTotals {
    uint64_t connections = 0, open = 0;  // made so far, and there now
#define SLIMWIRE_NET_COUNTER(name) uint64_t name = 0;
    SLIMWIRE_NET_COUNTERS(SLIMWIRE_NET_COUNTER)
#undef SLIMWIRE_NET_COUNTER

    void add(const Counters& counters) noexcept;
    void add(const PeerTotals& other) noexcept;
};

struct PeerTraffic {
    PeerKey key;
    PeerTotals totals;
};

// Peers beyond so many in a direction are added up.
inline constexpr size_t kMostPeers = 256;

class Traffic {
  public:
    // Sorted by direction and host; the folded ones of a direction last. No total is ever lost.
    [[nodiscard]] std::vector<PeerTraffic> peers() const;
    // A number that grows with every counter; 0 before the first connection.
    [[nodiscard]] uint64_t mark() const;
    // Called, by the thread that ends it, after a communicator's use of the network is over. At
    // most one; never changed after the first connection.
    void on_context_end(void (*call)()) noexcept { context_end_.store(call); }
    void context_ended() const noexcept;

  private:
    friend class TrafficEntry;
    struct Live {
        PeerKey key;
        Counters counters;
    };
    using Totals = std::map<PeerKey, PeerTotals>;
    static void add_peer(const PeerKey& key, const PeerTotals& totals, Totals* all);

    mutable std::mutex mutex_;
    std::list<Live> live_;
    Totals closed_;
    uint64_t changes_ = 0;  // connections opened and closed
    uint64_t closed_mark_ = 0;
    std::atomic<void (*)()> context_end_{nullptr};
};

// A connection's place in the traffic, as long as it lives.
class TrafficEntry {
  public:
    TrafficEntry(Traffic* traffic,
                 Direction direction,
                 const std::string& peer,
                 const char* device);
    ~TrafficEntry();
    TrafficEntry(const TrafficEntry&) = delete;
    TrafficEntry& operator=(const TrafficEntry&) = delete;
    [[nodiscard]] Counters& counters() noexcept { return live_->counters; }

  private:
    Traffic* const traffic_;
    std::list<Traffic::Live>::iterator live_;
};

}  // namespace slimwire::net
