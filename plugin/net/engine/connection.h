// What the connections of both directions share: registrations, a failure that stays, and the
// buffers of control messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "codecs/base/status.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/frame.h"
#include "plugin/net/engine/traffic.h"
#include "plugin/net/settings.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

class Connection;

// A send or a (grouped) receive in flight; owned by its connection and over when Connection::test()
// says so.
struct Request {
    Connection* connection = nullptr;
    bool in_use = false;
    bool write_once = false;  // a receive: somebody may look at the buffers before it is over
    int count = 1;            // messages
};

// Registered memory; owned by the connection it was registered with.
struct Memory {
    WireMemory* wire = nullptr;
    const uint8_t* data = nullptr;
    size_t bytes = 0;

    // Whether data at `address`, handed over with `registered`, needs this registration: others may
    // hold the same bytes. Data without one (null) goes by where it is.
    [[nodiscard]] bool holds(const void* address, const Memory* registered) const noexcept {
        const auto* byte = static_cast<const uint8_t*>(address);
        return registered != nullptr ? registered == this : byte >= data && byte < data + bytes;
    }
};

inline constexpr int kStagingBuffers = 8;

struct StagingBuffer {
    uint8_t* data = nullptr;  // aligned to 64
    bool used = false;
};

// Buffers of one connection in which encoded pieces wait for the network or for a codec thread. A
// connection has its own, so that none waits for another's: with shared ones, sends and receives of
// several nodes could wait for each other in a circle. Allocated at the first compressed message.
class Staging {
  public:
    Staging() = default;
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    // Makes the buffers hold encoded pieces of `piece_bytes`. With buffers in use that are too
    // small nothing happens and *ready is false: try again later.
    Status prepare(WireConnection& wire, size_t piece_bytes, bool* ready);
    // Null when all are in use.
    [[nodiscard]] StagingBuffer* take() noexcept;
    void give(StagingBuffer* buffer) noexcept { buffer->used = false; }
    // Deregisters and frees; after the wire dropped its operations.
    void close(WireConnection& wire) noexcept;

    [[nodiscard]] WireMemory* memory() const noexcept { return memory_; }

  private:
    std::array<StagingBuffer, kStagingBuffers> buffers_;
    uint8_t* block_ = nullptr;
    WireMemory* memory_ = nullptr;
    size_t capacity_ = 0;  // of one buffer
};

// What a connection is given by its engine, which outlives it.
struct EngineParts {
    EngineSettings settings;
    CodecPool* pool;
    Traffic* traffic;
};

// One use of the wire, kept by everything that was made in it.
struct Network {
    Network(const EngineParts& engine, std::unique_ptr<WireContext> opened)
        : parts(engine), wire(std::move(opened)) {}
    ~Network() { parts.traffic->context_ended(); }
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    const EngineParts& parts;
    const std::unique_ptr<WireContext> wire;
};

// One that failed still registers memory and takes sends and receives, as NCCL expects: it is their
// requests that fail, in test(), all with the first failure.
class Connection {
  public:
    virtual ~Connection() = default;
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    Status register_memory(void* data, size_t bytes, Memory** memory);
    // Receives into it that are in flight fail, the connection goes on. It ends with memory that
    // the network may be writing to, or that a send still reads: NCCL does that when it aborts, and
    // frees it before it closes.
    Status deregister_memory(Memory* memory);
    // Whether `request` is over; if so it is released. `sizes` (null or one entry for each grouped
    // receive) gets the bytes of the messages as they were sent. Over means: the exact bytes are in
    // place (receive), the buffer may be reused (send).
    virtual Status test(Request* request, bool* done, size_t* sizes) = 0;

    const Direction direction;
    bool logged = false;  // the tables': its failure has been said

  protected:
    // `wire` is the derived class's own, `device` the name of what it goes over.
    Connection(std::shared_ptr<Network> network,
               WireConnection& wire,
               Direction way,
               const char* device);

    // Whether a request in flight may still touch it.
    [[nodiscard]] virtual bool uses(const Memory& memory) const noexcept = 0;
    // Ends the requests that use it; false where the connection must end for that.
    [[nodiscard]] virtual bool let_go(const Memory& memory) = 0;
    // Waits until no codec thread works for this connection; what they have begun takes a moment.
    virtual void settle() noexcept = 0;

    // Buffers of control messages, registered once. Failing leaves none.
    Status open_control();
    [[nodiscard]] uint8_t* control_slot(uint64_t number) const noexcept {
        return control_.get() + number % kControlSlots * kControlBytes;
    }
    // The last before the wire is destroyed.
    void close() noexcept;
    // What a connection that failed hands out.
    [[nodiscard]] Request* dead_request() noexcept;
    // A failure stays: whatever follows on this connection gets the same. And who gets it may free
    // his buffers, so nothing of the connection is under way any more.
    Status fail(Status status);

  private:
    const std::shared_ptr<Network> network_;
    WireConnection& any_wire_;

  protected:
    const EngineParts& parts_;
    std::unique_ptr<uint8_t[]> control_;
    WireMemory* control_memory_ = nullptr;
    Staging staging_;
    TrafficEntry traffic_;
    Counters& counters_ = traffic_.counters();
    Status failure_;

  private:
    Request dead_;
    bool dropped_ = false;  // by fail()
};

[[nodiscard]] inline WireMemory* wire_memory(const Memory* memory) noexcept {
    return memory != nullptr ? memory->wire : nullptr;
}

}  // namespace slimwire::net
