// Buffers of one connection in which encoded pieces wait for the network or for a codec thread. A
// connection has its own, so that none waits for another's: with shared ones, sends and receives of
// several nodes could wait for each other in a circle. Allocated at the first compressed message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codecs/base/status.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

inline constexpr int kStagingBuffers = 8;

struct StagingBuffer {
    uint8_t* data = nullptr;  // aligned to 64
    bool used = false;
};

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
    [[nodiscard]] size_t capacity() const noexcept { return capacity_; }  // of one buffer

  private:
    std::array<StagingBuffer, kStagingBuffers> buffers_;
    uint8_t* block_ = nullptr;
    WireMemory* memory_ = nullptr;
    size_t capacity_ = 0;
};

}  // namespace slimwire::net
