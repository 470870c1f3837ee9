// Bytes as they are between GPU memory and pageable memory or a checksum, through the lane's two
// bounce buffers: codec threads and the GPU work at the same time, nothing waits. One job at a
// time.
//
// For what does not go through slots: messages that were held in host memory before somebody asked
// for them, and the checksum of a message in GPU memory, which is read back for it.
//
// Thread contract: that of the lane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "codecs/base/status.h"
#include "plugin/net/engine/checksum.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/gpu/gpu_lane.h"

namespace slimwire::net {

class GpuBounce {
  public:
    GpuBounce(GpuLane& lane, CodecPool& pool) : lane_(lane), pool_(pool) {}

    // Whether a job may begin; `bytes` > 0, and the memory must stay until done().
    [[nodiscard]] bool free() const noexcept { return !busy_; }
    void hash(const uint8_t* gpu, size_t bytes);
    void copy(const uint8_t* host, uint8_t* gpu, size_t bytes, bool lines);
    // Moves the job on; after lane.poll().
    Status advance();
    // Whether the job is over, and then ends it.
    [[nodiscard]] bool done() noexcept;
    // Of the last hash().
    [[nodiscard]] uint64_t checksum() const noexcept { return stream_->value(); }
    // Waits until no codec thread works for it.
    void settle() noexcept;

  private:
    enum class Phase : uint8_t { kFree, kOnGpu, kOnThread };
    struct Buffer final : CodecTask {
        GpuBounce* owner = nullptr;
        uint8_t* memory = nullptr;
        const uint8_t* host = nullptr;  // to copy from; null: to hash
        size_t bytes = 0;
        Phase phase = Phase::kFree;
        GpuLane::Ticket ticket = 0;

        void run() noexcept override;
    };

    void begin(const uint8_t* host, uint8_t* gpu, size_t bytes, bool hashes, bool lines);
    [[nodiscard]] size_t bytes_of(uint64_t slice) const noexcept;
    Status begin_slice(uint64_t slice);
    Status move(uint64_t slice);

    GpuLane& lane_;
    CodecPool& pool_;
    std::optional<ChecksumStream> stream_;
    std::array<Buffer, GpuLane::kBounces> buffers_;
    bool busy_ = false;
    bool hashes_ = false;
    bool lines_ = false;
    const uint8_t* host_ = nullptr;
    uint8_t* gpu_ = nullptr;
    size_t bytes_ = 0;
    uint64_t slices_ = 0, begun_ = 0, ended_ = 0;
};

}  // namespace slimwire::net
