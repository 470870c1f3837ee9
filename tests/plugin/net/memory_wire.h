// A complete Wire inside one process, for tests of what stands on wires: listeners, connections and
// messages behind one mutex a connection, no sockets, no time of its own. With knobs for what real
// networks do to their users: no room at the moment, slow or late delivery, a peer that dies,
// damaged bytes. Counts what is open, and notes calls that break the contract of
// plugin/net/wire.h (two threads in one connection, unknown requests, memory that is not
// registered).
//
// Two engines that are to talk get two wires of one MemoryNetwork. All calls are thread-safe as
// wire.h says; options are set before the first connection.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plugin/net/wire.h"

namespace slimwire::net {

struct MemoryWireOptions {
    WireDevice device{.name = "memory0"};
    int refuse_send_every = 0;     // every n-th send has no room; 0: never
    int refuse_receive_every = 0;  // the same for receives
    uint64_t delay_ns = 0;         // from send() until a message can arrive
    // Messages up to this size are copied by send() and done at once; larger ones are read from the
    // sender's buffer until their receive has them.
    size_t eager_bytes = 0;
    size_t bytes_per_call = SIZE_MAX;  // what one call moves at most: buffers fill in parts
    // The connection dies on both sides when its message of this number (from 0, of both lanes
    // together) is sent; -1: never.
    int64_t kill_at_message = -1;
    // Called on each message at its receiver, before it is done; may change bytes and shorten it.
    // `number` counts a connection's messages in that lane from 0. Null: nothing.
    std::function<void(Lane lane, uint64_t number, uint8_t* data, size_t* bytes)> tamper{};
    // Called by every call that makes something, which fails as this one does. Null: nothing.
    std::function<Status()> at_call{};
};

// Everything below is back at 0 when all objects are gone, except bytes.
struct MemoryWireCounts {
    std::atomic<long> contexts{0}, listeners{0}, attempts{0}, connections{0};
    std::atomic<long> requests{0}, memories{0};
    std::atomic<uint64_t> bytes[kLanes] = {};
};

namespace memory {

using Clock = std::chrono::steady_clock;

struct MemoryBlock {
    const uint8_t* data;
    size_t bytes;
};

struct Operation {
    Lane lane;
    uint8_t* data;
    size_t bytes;  // of the message; of a receive the capacity until it is done
    const MemoryBlock* memory = nullptr;  // null: not registered
    bool done = false;
    Status failure{};
};

struct Message {
    uint64_t number;
    const uint8_t* data;
    size_t bytes;
    std::vector<uint8_t> copy;    // eager messages
    Operation* sender = nullptr;  // the others
    size_t moved = 0;
    Clock::time_point due;
};

// What the two ends of a connection share.
struct Channel {
    std::mutex mutex;
    bool sender_open = true;
    bool receiver_open = true;
    Status failure{};
    Word word;          // the receiver's latest
    uint64_t sent = 0;  // messages of both lanes
    uint64_t sent_of[kLanes] = {};
    std::deque<Message> messages[kLanes];
    std::deque<Operation*> receives[kLanes];
};

struct HandleBytes {
    uint64_t magic;
    uint64_t listener;
};
inline constexpr uint64_t kMagic = 0x6d656d6f72793031;

}  // namespace memory

class MemoryNetwork : public std::enable_shared_from_this<MemoryNetwork> {
  public:
    explicit MemoryNetwork(MemoryWireOptions given) : options(std::move(given)) {}
    static std::shared_ptr<MemoryNetwork> make(MemoryWireOptions options = {}) {
        return std::make_shared<MemoryNetwork>(std::move(options));
    }

    [[nodiscard]] std::unique_ptr<Wire> wire();
    // How often a call broke the contract, and the first one in words.
    long violations() const {
        const std::lock_guard lock(rules_mutex);
        return broken_rules;
    }
    std::string first_violation() const {
        const std::lock_guard lock(rules_mutex);
        return first_broken_rule;
    }
    void violation(const std::string& text) {
        const std::lock_guard lock(rules_mutex);
        if (broken_rules++ == 0) {
            first_broken_rule = text;
        }
    }
    [[nodiscard]] Status called() const { return options.at_call ? options.at_call() : Status(); }

    MemoryWireOptions options;
    MemoryWireCounts counts;
    uint64_t comm_id = 0;  // of the last context
    int traffic_class = 0;
    std::mutex mutex;  // of what follows; taken before a channel's
    std::map<uint64_t, std::deque<std::shared_ptr<memory::Channel>>> waiting;  // by listener
    uint64_t next_listener = 1;
    mutable std::mutex rules_mutex;  // taken last
    long broken_rules = 0;
    std::string first_broken_rule;
};

namespace memory {

std::unique_ptr<SendWire> make_sender(std::shared_ptr<MemoryNetwork> network,
                                      std::shared_ptr<Channel> channel);
std::unique_ptr<ReceiveWire> make_receiver(std::shared_ptr<MemoryNetwork> network,
                                           std::shared_ptr<Channel> channel);

}  // namespace memory
}  // namespace slimwire::net
