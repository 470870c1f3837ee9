// What carries the plugin's messages: connections of one direction, each with two ordered lanes.
// The engine (connection.h) is written against this; ucx/ implements it by UCP, wrapped/ by the
// table of another net plugin, throttle.h puts a slower network before either.
//
// A lane delivers whole messages in the order they were sent: the n-th receive of a lane gets the
// n-th message of that lane. The lanes of a connection do not wait for each other. A receive may be
// larger than the message; a message larger than its receive is an error.
//
// Thread contract: calls on one connection come from one thread at a time, calls on different
// connections and listeners of one context from any. Nothing waits, except that close (the
// destructors) may take a bounded moment. Errors: kRemoteError when the peer is gone or refused us
// (the connection stays failed), kInvalidArgument for a message larger than its receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

// kControl carries the engine's frames: at most kControlBytes each, received into buffers that are
// posted in advance (kControlSlots of them, before the first message may arrive). The wire keeps a
// sender from running further ahead than that, so what a silent receiver holds is bounded. kData
// carries payloads, each announced by a frame; its receives are posted when the frame has come.
enum class Lane : uint8_t { kControl = 0, kData = 1 };
inline constexpr int kLanes = 2;
inline constexpr size_t kControlBytes = 4096;
inline constexpr int kControlSlots = 32;

// An operation in flight; owned by the connection, valid until test() said done or failed.
class WireRequest;
// Memory that the wire knows; owned by the connection's context until it is deregistered.
class WireMemory;

class WireConnection {
  public:
    // Closes, after drop().
    virtual ~WireConnection() = default;

    // Ends all operations in flight, done or not: after it no buffer of theirs is read or written.
    // Only deregister_memory and the destructor may follow. Takes a bounded moment, whatever the
    // peer does.
    virtual void drop() noexcept = 0;

    // Makes `bytes` of host memory at `data` known; wires that need no registration return a null
    // *memory. Memory that is not registered may be passed to send and receive with a null `memory`
    // all the same.
    virtual Status register_memory(void* data, size_t bytes, WireMemory** memory) = 0;
    virtual Status deregister_memory(WireMemory* memory) = 0;
    // Whether `request` is over; if so it is released and *bytes (may be null) is the size of the
    // message that came. Makes progress on everything that the context has under way.
    virtual Status test(WireRequest* request, bool* done, size_t* bytes) = 0;
    // The other side, for messages and reports: "10.0.0.2:4711 (ucx tcp)", address, port if there
    // is one, and what carries the messages. Constant once connected.
    [[nodiscard]] virtual const std::string& peer() const noexcept = 0;
};

// What the receiver of a connection tells its sender on the way back: how fast messages became
// whole there, in bytes a second; 0 is unknown.
struct Word {
    uint64_t raw_bytes_per_s = 0;
    uint64_t coded_bytes_per_s = 0;
};

class SendWire : public WireConnection {
  public:
    // The latest that the receiver told. Nothing on networks without a way back.
    [[nodiscard]] virtual Word word() noexcept { return {}; }
    // A null *request means no room at the moment. The buffer must stay until the request is done.
    virtual Status send(
        Lane lane, const void* data, size_t bytes, WireMemory* memory, WireRequest** request) = 0;
};

class ReceiveWire : public WireConnection {
  public:
    // Tells the sender, some time: only the latest word counts, and it may never arrive.
    virtual void tell(const Word&) noexcept {}
    // A null *request means no room at the moment.
    virtual Status receive(
        Lane lane, void* data, size_t capacity, WireMemory* memory, WireRequest** request) = 0;
};

class WireListener {
  public:
    virtual ~WireListener() = default;
    // A null *wire means that nobody has connected yet. May be called again for further
    // connections. A stray or wrong peer (other magic, version or cookie) is refused with one log
    // line and does not become a connection, nor an error here.
    virtual Status accept(std::unique_ptr<ReceiveWire>* wire) = 0;
};

// An attempt to connect, kept between calls that found it unfinished.
class WireConnecting {
  public:
    virtual ~WireConnecting() = default;
};

// No message is longer: a request of ncclNet's carries an int for each size it reports.
inline constexpr size_t kMostMessageBytes = size_t{1} << 30;

// What a network device is like.
struct WireDevice {
    std::string name{};
    std::string pci_path{};  // of /sys, "" for a virtual device
    uint64_t guid = 0;
    bool reg_is_global = false;
    int speed_mbps = 10000;
    int port = 0;
    float latency_us = 0;
    int max_connections = 65536;
    int64_t rail_id = -1;  // ncclNet v12; -1 unknown
    int64_t plane_id = -1;
    size_t max_message_bytes = kMostMessageBytes;
};

// One communicator's use of the network (before table v11: the process's).
class WireContext {
  public:
    virtual ~WireContext() = default;
    // `handle` receives what a peer needs to connect: kNetHandleBytes bytes that NCCL carries over.
    virtual Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) = 0;
    // A null *wire means not yet; *attempt (null at first) is then handed in again, or destroyed to
    // give up. `handle` is read until the connection is there.
    virtual Status connect(int device,
                           void* handle,
                           std::unique_ptr<WireConnecting>* attempt,
                           std::unique_ptr<SendWire>* wire) = 0;
};

// A kind of network, opened once for the process.
class Wire {
  public:
    virtual ~Wire() = default;
    [[nodiscard]] virtual int devices() const noexcept = 0;
    [[nodiscard]] virtual const WireDevice& device(int index) const noexcept = 0;
    // `traffic_class` as in NCCL's configuration, -1 if not set; `comm_id` for messages.
    virtual Status open(uint64_t comm_id,
                        int traffic_class,
                        std::unique_ptr<WireContext>* context) = 0;
    // The process ends: waits until what was sent over connections closed since is handed over, at
    // most `limit_ms`.
    virtual void finish(int /*limit_ms*/) noexcept {}
};

}  // namespace slimwire::net
