// What a connection has on a GPU: a stream of its own, pinned host memory that the kernels reach by
// themselves, and events that say what is over.
//
//   GPU memory ── palette encoder ──> slots (pinned host memory) ── wire
//   GPU memory <── palette decoder ── slots <── wire
//
// Kernels write encodings straight into the slots, and read them there: one launch for up to kBatch
// pieces, only the encoded bytes cross PCIe, and their sizes stand in the encodings. With a buffer
// on the GPU between, the size would have to come back before the copy of that size is enqueued,
// and each piece would take a launch, two copies and two waits.
//
// Nothing here waits for the GPU and nothing allocates after make(), except settle(). The stream is
// non-blocking and of the highest priority: NCCL's kernels occupy the device while they wait for
// what goes through here. Kernels were loaded before (Gpu), because loading may wait for them.
//
// Order within a lane is that of its calls. Several calls may share one mark().
//
// Thread contract: one thread at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "codecs/base/device.h"
#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire::net {

class Gpu;

class GpuLane {
  public:
    static constexpr int kSlots = 8;    // encoded pieces that wait for the network or the GPU
    static constexpr int kBatch = 4;    // pieces of one launch
    static constexpr int kBounces = 2;  // buffers of bytes as they are (gpu_bounce.h)
    static constexpr int kSmalls = 32;  // small messages and samples, by number of the request
    static constexpr size_t kSmallBytes = 4096;

    // Names work that was enqueued; 0 is over from the begin.
    using Ticket = uint64_t;

    // Allocates; kOutOfMemory says how much pinned memory was asked for.
    static Result<std::unique_ptr<GpuLane>> make(Gpu& gpu, int device);
    ~GpuLane();
    GpuLane(const GpuLane&) = delete;
    GpuLane& operator=(const GpuLane&) = delete;

    [[nodiscard]] Gpu& gpu() const noexcept { return gpu_; }
    [[nodiscard]] int device() const noexcept { return device_; }
    // All of the pinned memory, for registration with a wire.
    [[nodiscard]] uint8_t* pinned() const noexcept { return pinned_; }
    [[nodiscard]] size_t pinned_bytes() const noexcept { return pinned_bytes_; }
    // Slots lie one behind the other, slot_bytes() apart, room for a piece of piece_bytes() each,
    // encoded as any type or as it is.
    [[nodiscard]] uint8_t* slot(int number) const noexcept {
        return pinned_ + static_cast<size_t>(number) * slot_bytes_;
    }
    [[nodiscard]] size_t slot_bytes() const noexcept { return slot_bytes_; }
    [[nodiscard]] size_t piece_bytes() const noexcept { return piece_bytes_; }
    [[nodiscard]] uint8_t* bounce(int number) const noexcept {
        return bounces_ + static_cast<size_t>(number) * piece_bytes_;
    }
    [[nodiscard]] uint8_t* small(uint64_t number) const noexcept {
        return smalls_ + number % kSmalls * kSmallBytes;
    }

    // Whether another mark() has room. Calls below need no room; what they enqueue is over when the
    // next mark's ticket is.
    [[nodiscard]] bool room() const noexcept { return marked_ - over_ < kEvents; }

    // Encodes `bytes` (at least an element) of GPU memory at `source`, aligned to the element, cut
    // into pieces (piece.h) of `piece_bytes`, into slots from `slot` on, which are contiguous. Then
    // finished() ends each of them.
    Status encode(DType element, const uint8_t* source, size_t bytes, size_t piece_bytes, int slot);
    // The size of the piece of `bytes` that was encoded into `slot`; `bytes` when it does not
    // shrink.
    [[nodiscard]] size_t finished(DType element, int slot, size_t bytes) const noexcept;
    // Decodes pieces that stand in slots from `slot` on and have been checked (check_piece(): where
    // the last one's tail begins is `last_encoded`) to `output` in GPU memory, aligned to the
    // element.
    Status decode(DType element,
                  int slot,
                  size_t last_encoded,
                  uint8_t* output,
                  size_t bytes,
                  size_t piece_bytes);
    // After decode() from `slot` is over: whether its bytes were no encodings.
    [[nodiscard]] bool corrupt(int slot) const noexcept;

    Status copy_to_host(uint8_t* pinned, const uint8_t* source, size_t bytes);
    // `lines`: a reader on the GPU may look at the flags between the data (copy_lines.h).
    Status copy_to_gpu(uint8_t* output, const uint8_t* pinned, size_t bytes, bool lines);
    // The same of bytes in pieces of piece_bytes(), one to each slot from `slot` on: one copy, and
    // another one for a last piece that is shorter; with `lines` a launch for each.
    Status copy_to_slots(int slot, const uint8_t* source, size_t bytes);
    Status copy_from_slots(uint8_t* output, int slot, size_t bytes, bool lines);

    Result<Ticket> mark();
    // Looks what is over. An error of the GPU stays.
    Status poll();
    [[nodiscard]] bool over(Ticket ticket) const noexcept { return ticket <= over_; }
    [[nodiscard]] bool idle() const noexcept { return over_ == marked_; }

    // Waits, for a bounded time, until nothing of this lane runs on the GPU any more. False when
    // that did not come: the GPU may still touch the buffers.
    bool settle() noexcept;
    // No work, no failure.
    [[nodiscard]] bool reusable() const noexcept { return failure_.ok() && idle() && !pending_; }

  private:
    static constexpr uint64_t kEvents = 64;

    GpuLane(Gpu& gpu, int device);
    Status allocate();
    Status keep(Status status);
    [[nodiscard]] int blocks_for(size_t bytes);
    void give_blocks() noexcept;

    Gpu& gpu_;
    const DeviceApi& api_;
    const int device_;
    const size_t piece_bytes_;
    const size_t slot_bytes_;
    uint8_t* pinned_ = nullptr;
    size_t pinned_bytes_ = 0;
    uint8_t* bounces_ = nullptr;
    uint8_t* smalls_ = nullptr;
    uint8_t* tails_ = nullptr;     // 8 bytes a slot: of a piece, after its last whole element
    uint8_t* statuses_ = nullptr;  // a word of 64 bytes a slot
    void* workspace_ = nullptr;    // of the encoder, in GPU memory
    cudaStream_t stream_ = nullptr;
    std::array<cudaEvent_t, kEvents> events_{};
    // Thread blocks that a launch may have. Launches of a stream follow one another, so they share
    // these until all are over.
    int blocks_ = 0;
    bool pending_ = false;  // some work is not marked yet
    uint64_t marked_ = 0, over_ = 0;
    Status failure_;
};

}  // namespace slimwire::net
