// What the connections of both directions share: registrations, a failure that stays, and the
// buffers of control messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugin/net/engine.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/frame.h"
#include "plugin/net/engine/staging.h"
#include "plugin/net/engine/traffic.h"
#include "plugin/net/settings.h"

namespace slimwire::net {

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

// What a connection is given by its engine, which outlives it.
struct EngineParts {
    EngineSettings settings;
    CodecPool* pool;
    Traffic* traffic;
};

// Base is SendConnection or ReceiveConnection, WireType the wire of that direction.
template <class Base, class WireType>
class ConnectionOver : public Base {
  public:
    // `device`: name of the device that the wire goes over.
    ConnectionOver(const EngineParts& parts,
                   std::unique_ptr<WireType> wire,
                   Direction direction,
                   const char* device)
        : parts_(parts),
          wire_(std::move(wire)),
          traffic_(parts.traffic, direction, wire_->peer(), device) {}

    Status register_memory(void* data, size_t bytes, Memory** memory) override {
        auto made = std::make_unique<Memory>();
        made->data = static_cast<const uint8_t*>(data);
        made->bytes = bytes;
        if (!dropped_) {
            SLIMWIRE_TRY(wire_->register_memory(data, bytes, &made->wire));
        }
        *memory = made.release();
        return {};
    }
    // With requests in flight that use it, which NCCL does when it aborts, it ends those; and the
    // connection where the network may be at the memory, for NCCL frees it before it closes.
    Status deregister_memory(Memory* memory) override {
        const std::unique_ptr<Memory> owned(memory);
        if (!dropped_ && uses(*owned) && !let_go(*owned)) {
            static_cast<void>(fail(
                {Code::kRemoteError, "the connection was ended by deregistering memory in use"}));
        }
        return owned->wire != nullptr ? wire_->deregister_memory(owned->wire) : Status();
    }

  protected:
    // Whether a request in flight may still touch it.
    [[nodiscard]] virtual bool uses(const Memory& memory) const noexcept = 0;
    // Ends the requests that use it; false where the connection must end for that.
    [[nodiscard]] virtual bool let_go(const Memory& memory) = 0;
    // Waits until no codec thread works for this connection; what they have begun takes a moment.
    virtual void settle() noexcept = 0;

    // Buffers of control messages, registered once. Failing leaves none.
    Status open_control() {
        constexpr size_t bytes = size_t{kControlSlots} * kControlBytes;
        control_ = std::make_unique<uint8_t[]>(bytes);
        return wire_->register_memory(control_.get(), bytes, &control_memory_);
    }
    [[nodiscard]] uint8_t* control_slot(uint64_t number) const noexcept {
        return control_.get() + number % kControlSlots * kControlBytes;
    }
    // After settle().
    void close_wire() noexcept {
        wire_->drop();
        staging_.close(*wire_);
        if (control_memory_ != nullptr) {
            static_cast<void>(wire_->deregister_memory(control_memory_));
        }
        wire_.reset();
    }
    // What a connection that failed hands out.
    [[nodiscard]] Request* dead_request() noexcept {
        dead_.connection = this;
        return &dead_;
    }
    // A failure stays: whatever follows on this connection gets the same. And who gets it may free
    // his buffers, so nothing of the connection is under way any more.
    Status fail(Status status) {
        if (failure_.ok()) {
            failure_ = std::move(status);
            settle();
            wire_->drop();
            dropped_ = true;
        }
        return failure_;
    }

    const EngineParts& parts_;
    std::unique_ptr<WireType> wire_;
    std::unique_ptr<uint8_t[]> control_;
    WireMemory* control_memory_ = nullptr;
    Staging staging_;
    TrafficEntry traffic_;
    Counters& counters_ = traffic_.counters();
    Status failure_;
    Request dead_;
    bool dropped_ = false;  // by fail()
};

[[nodiscard]] inline WireMemory* wire_memory(const Memory* memory) noexcept {
    return memory != nullptr ? memory->wire : nullptr;
}

}  // namespace slimwire::net
