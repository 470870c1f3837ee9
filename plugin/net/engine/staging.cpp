#include "plugin/net/engine/staging.h"

#include <cstdlib>
#include <string>

#include "plugin/net/engine/frame.h"

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

}  // namespace slimwire::net
