#include "plugin/net/engine/connection.h"

#include <cstdlib>
#include <string>
#include <utility>

namespace slimwire::net {

Staging::~Staging() {
    std::free(block_);
}

Status Staging::prepare(WireConnection& wire, size_t piece_bytes, bool* ready) {
    const size_t wanted = piece_capacity(piece_bytes);
    *ready = wanted <= capacity_;
    if (*ready) {
        return {};
    }
    for (const StagingBuffer& buffer : buffers_) {
        if (buffer.used) {
            return {};
        }
    }
    close(wire);
    // Pages of their own: a network that pins memory pins nothing else.
    const size_t bytes = (wanted * kStagingBuffers + 4095) / 4096 * 4096;
    block_ = static_cast<uint8_t*>(std::aligned_alloc(4096, bytes));
    if (block_ == nullptr) {
        return {Code::kOutOfMemory,
                "no " + std::to_string(bytes) + " bytes for pieces of compressed messages"};
    }
    SLIMWIRE_TRY(wire.register_memory(block_, bytes, &memory_));
    for (size_t i = 0; i < buffers_.size(); ++i) {
        buffers_[i].data = block_ + i * wanted;
    }
    capacity_ = wanted;
    *ready = true;
    return {};
}

StagingBuffer* Staging::take() noexcept {
    for (StagingBuffer& buffer : buffers_) {
        if (!buffer.used && buffer.data != nullptr) {
            buffer.used = true;
            return &buffer;
        }
    }
    return nullptr;
}

void Staging::close(WireConnection& wire) noexcept {
    if (memory_ != nullptr) {
        static_cast<void>(wire.deregister_memory(memory_));
        memory_ = nullptr;
    }
    std::free(block_);
    block_ = nullptr;
    buffers_ = {};
    capacity_ = 0;
}

Connection::Connection(std::shared_ptr<Network> network,
                       WireConnection& wire,
                       Direction way,
                       const char* device)
    : direction(way),
      network_(std::move(network)),
      any_wire_(wire),
      parts_(network_->parts),
      traffic_(parts_.traffic, way, wire.peer(), device) {}

Status Connection::register_memory(void* data, size_t bytes, Memory** memory) {
    auto made = std::make_unique<Memory>();
    made->data = static_cast<const uint8_t*>(data);
    made->bytes = bytes;
    if (!dropped_) {
        SLIMWIRE_TRY(any_wire_.register_memory(data, bytes, &made->wire));
    }
    *memory = made.release();
    return {};
}

Status Connection::deregister_memory(Memory* memory) {
    const std::unique_ptr<Memory> owned(memory);
    if (!dropped_ && uses(*owned) && !let_go(*owned)) {
        static_cast<void>(
            fail({Code::kRemoteError, "the connection was ended by deregistering memory in use"}));
    }
    return owned->wire != nullptr ? any_wire_.deregister_memory(owned->wire) : Status();
}

Status Connection::open_control() {
    constexpr size_t bytes = size_t{kControlSlots} * kControlBytes;
    control_ = std::make_unique<uint8_t[]>(bytes);
    return any_wire_.register_memory(control_.get(), bytes, &control_memory_);
}

void Connection::close() noexcept {
    settle();
    any_wire_.drop();
    staging_.close(any_wire_);
    if (control_memory_ != nullptr) {
        static_cast<void>(any_wire_.deregister_memory(control_memory_));
    }
}

Request* Connection::dead_request() noexcept {
    dead_ = {.connection = this, .in_use = true};
    return &dead_;
}

Status Connection::fail(Status status) {
    if (failure_.ok()) {
        failure_ = std::move(status);
        settle();
        any_wire_.drop();
        dropped_ = true;
    }
    return failure_;
}

}  // namespace slimwire::net
