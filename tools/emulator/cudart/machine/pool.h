// A pool of the stream-ordered allocator. Freed blocks wait here for reuse: at once on the stream
// that freed them, on another stream when the freeing stream has got there. After warm-up an
// allocation is one look-up under the pool's lock, no system call. Owned by shared_ptr: a destroyed
// pool lives on until its last allocation is freed. Any thread.
#pragma once

#include <driver_types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tools/emulator/cudart/machine/stream.h"

namespace slimwire::emulator {

class DeviceMemory;

class Pool : public std::enable_shared_from_this<Pool> {
  public:
    Pool(DeviceMemory& memory, int device, size_t max_bytes)
        : memory_(memory), device_(device), max_bytes_(max_bytes) {}

    // Memory that work enqueued on `stream` from now on may use. Throws std::bad_alloc. `bytes` >
    // 0.
    void* allocate(size_t bytes, const std::shared_ptr<Stream>& stream);
    // Takes back a live block of `block_bytes` of this pool's device once `stream` gets here.
    void free(void* pointer, size_t block_bytes, const std::shared_ptr<Stream>& stream);
    // A live block that leaves the pool by cudaFree.
    void forget(size_t block_bytes);

    // No reuse from now on: waits for pending frees and gives everything back that is not in use.
    // What is in use goes back when it is freed.
    void close();

    // Gives waiting blocks back to the device until at most `keep_bytes` stay reserved.
    void trim(size_t keep_bytes);

    [[nodiscard]] int device() const { return device_; }

    // Known attributes only. Flags and the threshold are accepted and reported: this pool keeps
    // freed blocks until trimmed and always reuses across streams.
    [[nodiscard]] uint64_t attribute(cudaMemPoolAttr attribute) const;
    // False where the pool does not take it: high marks can only be reset, by 0.
    bool set_attribute(cudaMemPoolAttr attribute, uint64_t value);

  private:
    struct FreeBlock {
        void* pointer;
        Dependency freed_at;
    };

    void* take_waiting(size_t block_bytes, const Stream& stream);
    void trim_locked(size_t keep_bytes);

    DeviceMemory& memory_;
    const int device_;
    const size_t max_bytes_;  // 0: as much as the device has
    mutable std::mutex mutex_;
    bool closed_ = false;
    std::unordered_map<size_t, std::deque<FreeBlock>> waiting_;  // by block size
    // By cudaMemPoolAttr; a high mark stands behind the present value.
    std::array<uint64_t, cudaMemPoolAttrUsedMemHigh + 1> attributes_{0, 1, 1, 1};
    uint64_t& reserved_bytes_ = attributes_[cudaMemPoolAttrReservedMemCurrent];
    uint64_t& reserved_high_ = attributes_[cudaMemPoolAttrReservedMemHigh];
    uint64_t& used_bytes_ = attributes_[cudaMemPoolAttrUsedMemCurrent];
    uint64_t& used_high_ = attributes_[cudaMemPoolAttrUsedMemHigh];
};

// The block size that a request of `bytes` takes: multiples of 512 up to 4 KiB, then eight steps
// for each power of two, so that at most an eighth is lost and sizes repeat.
size_t pool_block_bytes(size_t bytes);

// Gives a block of device memory back when its stream gets there.
OperationRef release_operation(DeviceMemory& memory, void* pointer);

}  // namespace slimwire::emulator
