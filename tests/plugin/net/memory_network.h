// What the ends of the memory wire's connections and listeners share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/plugin/net/memory_wire.h"

namespace slimwire::net::memory {

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

struct ListenerState {
    std::deque<std::shared_ptr<Channel>> waiting;
};

struct HandleBytes {
    uint64_t magic;
    uint64_t listener;
};
inline constexpr uint64_t kMagic = 0x6d656d6f72793031;

class Network : public MemoryNetwork, public std::enable_shared_from_this<Network> {
  public:
    explicit Network(MemoryWireOptions given) : options(std::move(given)) {}

    std::unique_ptr<Wire> wire() override;
    const MemoryWireCounts& counts() const override { return count; }
    void kill_connections() override;
    long violations() const override {
        const std::lock_guard lock(rules_mutex);
        return broken_rules;
    }
    std::string first_violation() const override {
        const std::lock_guard lock(rules_mutex);
        return first_broken_rule;
    }
    void violation(const std::string& text) {
        const std::lock_guard lock(rules_mutex);
        if (broken_rules++ == 0) {
            first_broken_rule = text;
        }
    }

    MemoryWireOptions options;
    MemoryWireCounts count;
    std::mutex mutex;  // of what follows; taken before a channel's
    std::map<uint64_t, ListenerState> listeners;
    std::vector<std::weak_ptr<Channel>> channels;
    uint64_t next_listener = 1;
    mutable std::mutex rules_mutex;  // taken last
    long broken_rules = 0;
    std::string first_broken_rule;
};

std::unique_ptr<SendWire> make_sender(std::shared_ptr<Network> network,
                                      std::shared_ptr<Channel> channel);
std::unique_ptr<ReceiveWire> make_receiver(std::shared_ptr<Network> network,
                                           std::shared_ptr<Channel> channel);

}  // namespace slimwire::net::memory
