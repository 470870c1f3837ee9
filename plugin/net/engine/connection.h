// What the connections of both directions share: registrations, a failure that stays, and the
// buffers of control messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugin/net/engine.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/counters.h"
#include "plugin/net/engine/frame.h"
#include "plugin/net/engine/staging.h"
#include "plugin/net/settings.h"

namespace slimwire::net {

struct Memory {
    WireMemory* wire;
    MemoryKind kind;
};

// What a connection is given by its engine, which outlives it.
struct EngineParts {
    EngineSettings settings;
    CodecPool* pool;
};

// Base is SendConnection or ReceiveConnection, WireType the wire of that direction.
template <class Base, class WireType>
class ConnectionOver : public Base {
  public:
    ConnectionOver(const EngineParts& parts, std::unique_ptr<WireType> wire)
        : parts_(parts), wire_(std::move(wire)) {}

    Status register_memory(void* data, size_t bytes, MemoryKind kind, Memory** memory) override {
        auto made = std::make_unique<Memory>(Memory{nullptr, kind});
        SLIMWIRE_TRY(wire_->register_memory(data, bytes, kind, &made->wire));
        *memory = made.release();
        return {};
    }
    Status deregister_memory(Memory* memory) override {
        const std::unique_ptr<Memory> owned(memory);
        return owned->wire != nullptr ? wire_->deregister_memory(owned->wire) : Status();
    }

  protected:
    // Buffers of control messages, registered once. Failing leaves none.
    Status open_control() {
        constexpr size_t bytes = size_t{kControlSlots} * kControlBytes;
        control_ = std::make_unique<uint8_t[]>(bytes);
        return wire_->register_memory(control_.get(), bytes, MemoryKind::kHost, &control_memory_);
    }
    [[nodiscard]] uint8_t* control_slot(uint64_t number) const noexcept {
        return control_.get() + number % kControlSlots * kControlBytes;
    }
    // After the codec threads are done with this connection.
    void close_wire() noexcept {
        wire_->drop();
        staging_.close(*wire_);
        if (control_memory_ != nullptr) {
            static_cast<void>(wire_->deregister_memory(control_memory_));
        }
        wire_.reset();
    }
    // A failure stays: whatever follows on this connection gets the same.
    Status fail(Status status) {
        if (failure_.ok()) {
            failure_ = std::move(status);
        }
        return failure_;
    }

    const EngineParts& parts_;
    std::unique_ptr<WireType> wire_;
    std::unique_ptr<uint8_t[]> control_;
    WireMemory* control_memory_ = nullptr;
    Staging staging_;
    Counters counters_;
    Status failure_;
};

[[nodiscard]] inline WireMemory* wire_memory(const Memory* memory) noexcept {
    return memory != nullptr ? memory->wire : nullptr;
}
[[nodiscard]] inline bool on_device(const Memory* memory) noexcept {
    return memory != nullptr && memory->kind == MemoryKind::kCuda;
}

}  // namespace slimwire::net
