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
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "plugin/net/wire.h"

namespace slimwire::net {

struct MemoryWireOptions {
    WireDevice device{.name = "memory0"};
    int devices = 1;
    int connect_polls = 2;         // connect() says "not yet" that often
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
};

// Everything below is back at 0 when all objects are gone, except messages and bytes.
struct MemoryWireCounts {
    std::atomic<long> contexts{0}, listeners{0}, attempts{0}, connections{0};
    std::atomic<long> requests{0}, memories{0};
    std::atomic<uint64_t> messages[kLanes] = {};
    std::atomic<uint64_t> bytes[kLanes] = {};
};

class MemoryNetwork {
  public:
    static std::shared_ptr<MemoryNetwork> make(MemoryWireOptions options = {});
    virtual ~MemoryNetwork() = default;

    [[nodiscard]] virtual std::unique_ptr<Wire> wire() = 0;
    [[nodiscard]] virtual const MemoryWireCounts& counts() const = 0;
    // Lets every connection that exists fail on both sides with kRemoteError.
    virtual void kill_connections() = 0;
    // How often a call broke the contract, and the first one in words.
    [[nodiscard]] virtual long violations() const = 0;
    [[nodiscard]] virtual std::string first_violation() const = 0;
};

}  // namespace slimwire::net
