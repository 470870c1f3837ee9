// All device memory of collectives/ comes and goes here, and nothing here waits for work: what the
// device has to do may wait for a peer, whose host waits for a call that this thread has yet to
// make. Memory is of a pool of slimwire's own on each device, whose allocations depend on no
// pending work; cudaMalloc and cudaFree, which may wait for the whole device, are left for devices
// without pools. Memory that work may still use is retired behind an event, and freed by whoever
// comes here after the event has happened.
//
// Pinned memory of the host, which devices write and later calls read, is of pieces that are never
// freed, because cudaHostAlloc and cudaFreeHost may wait, too: what one communicator has returned
// the next one gets.
//
// One a process; thread-safe. No lock is held across a CUDA call.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call/mapped_memory.h"

namespace slimwire {

// Pinned memory of the host, which every device reaches.
struct Pinned {
    void* memory = nullptr;  // null: none
    size_t bytes = 0;

    template <class T>
    [[nodiscard]] T* as() const noexcept {
        return static_cast<T*>(memory);
    }
};

class DeviceMemory {
  public:
    // As cudaMalloc on `device`, of any stream from then on. It goes and comes back with others of
    // its `home`, a number of next_home(), and what is behind the first `kept` bytes may be zero
    // then; 0: it stays.
    static constexpr uint64_t kAll = ~uint64_t{0};
    cudaError_t allocate(const DeviceApi& api,
                         int device,
                         uint64_t bytes,
                         void** memory,
                         uint64_t home = 0,
                         uint64_t kept = kAll);
    // The same for what other ranks count on: where the device has no memory left, though pools
    // gave back what they keep, pinned memory of the host, which it reaches more slowly. Freed as
    // the device's; getting it may wait.
    cudaError_t allocate_anyhow(const DeviceApi& api,
                                int device,
                                uint64_t bytes,
                                void** memory,
                                uint64_t home = 0,
                                uint64_t kept = kAll);
    [[nodiscard]] uint64_t next_home() noexcept { return ++homes_; }
    [[nodiscard]] MappedMemory& mapped() noexcept { return mapped_; }
    [[nodiscard]] const MappedMemory& mapped() const noexcept { return mapped_; }
    // Of memory that no work uses any more; null: nothing.
    void free(const DeviceApi& api, int device, void* memory) noexcept;
    // Of memory that is used until `end`, an event that is ours from then on; null: by nothing.
    // Then `owners` are given up, too.
    void retire(const DeviceApi& api,
                int device,
                cudaEvent_t end,
                std::vector<void*> memory,
                std::vector<Pinned> pinned = {},
                std::vector<std::shared_ptr<void>> owners = {}) noexcept;
    // Of what may be in use for good: `owners` are not given up.
    void keep(std::vector<std::shared_ptr<void>> owners) noexcept;
    // Frees what is retired and no longer in use, and gives the devices back what is free.
    void collect(const DeviceApi& api) noexcept;
    // What the pool has of `device`, in use or not, and what is mapped there; nothing where there
    // is no pool.
    std::optional<uint64_t> reserved(const DeviceApi& api, int device) noexcept;
    // Where no piece has the room, a new one of kPinnedPiece is made, which may wait: in a call,
    // which may not, there is none then. None where CUDA has none. Goes back by retire().
    [[nodiscard]] Pinned pin(const DeviceApi& api, size_t bytes, bool may_wait = true) noexcept;
    static constexpr size_t kPinnedPiece = 256 << 10;

  private:
    struct Pool {
        cudaMemPool_t handle = nullptr;  // null: the device has none
        cudaStream_t stream = nullptr;   // nothing else ever runs on it
    };
    struct Retired {
        cudaEvent_t end = nullptr;
        std::vector<void*> memory;
        std::vector<Pinned> pinned;
        std::vector<std::shared_ptr<void>> owners;
    };
    struct OfDevice {
        std::mutex mutex;  // of the rest
        std::optional<Pool> pool;
        std::vector<Retired> retired;
    };
    OfDevice& of_device(int device);
    static std::optional<Pool> make_pool(const DeviceApi& api, int device) noexcept;
    static Pool pool_of(const DeviceApi& api, int device, OfDevice* of) noexcept;
    void free_in(const DeviceApi& api, const Pool& pool, void* memory) noexcept;
    void free_all(const DeviceApi& api, const Pool& pool, const Retired& one) noexcept;
    void collect_on(const DeviceApi& api, int device, OfDevice* of) noexcept;
    void unpin(const std::vector<Pinned>& pinned) noexcept;

    std::atomic<uint64_t> homes_{0};
    MappedMemory mapped_;
    std::mutex mutex_;  // of the rest; entries of the map stay
    std::map<int, OfDevice> devices_;
    std::multimap<size_t, void*> unused_;  // pinned, by bytes
    std::map<void*, size_t> of_host_;      // pinned, in the place of a device's
    std::vector<std::shared_ptr<void>> kept_;
};

// Memory whose uses end at events: when this is destroyed it is freed if all of them have happened,
// else retired behind what is enqueued before them now. On the current device, in a DeviceScope.
class Retirement {
  public:
    Retirement(DeviceMemory* memory, const DeviceApi& api, int device) noexcept
        : owner_(memory), api_(api), device_(device) {}
    ~Retirement();
    Retirement(const Retirement&) = delete;
    Retirement& operator=(const Retirement&) = delete;

    // The event stays the caller's, who may record it anew.
    void after(cudaEvent_t end) noexcept;
    // Null: nothing.
    void add(void* memory);
    void add(const Pinned& pinned);
    void give_up(std::shared_ptr<void> owner) { owners_.push_back(std::move(owner)); }

  private:
    DeviceMemory* const owner_;
    const DeviceApi& api_;
    const int device_;
    cudaStream_t stream_ = nullptr;  // waits for the events that have not happened
    bool lost_ = false;              // when the memory is free is not known
    std::vector<void*> memory_;
    std::vector<Pinned> pinned_;
    std::vector<std::shared_ptr<void>> owners_;
};

// Device memory that this process holds for its communicators, device by device, and the most it
// may hold (SLIMWIRE_MAX_MEMORY). Scratch is only counted: plans have decided on it, on all ranks
// alike. Residuals ask first, one by one, whatever communicator they belong to (README, "Memory").
// One a process; thread-safe; never called on a path that neither allocates nor frees.
class MemoryBudget {
  public:
    // Bytes that each device may hold; 0: no limit. Before the first call of the others.
    void set_limit(uint64_t bytes) noexcept { limit_ = bytes; }
    [[nodiscard]] uint64_t limit() const noexcept { return limit_; }

    // Counts `bytes` more on `device` if that stays within the limit; else nothing.
    [[nodiscard]] bool reserve(int device, uint64_t bytes);
    // Counts them whatever the limit.
    void take(int device, uint64_t bytes);
    void give_back(int device, uint64_t bytes);
    [[nodiscard]] uint64_t held(int device) const;
    // Scratch that is reserved when communicators are made: counts as many of the `wanted` bytes as
    // there are in half of what all of it may still have of a device with `total` bytes, and
    // returns how many.
    [[nodiscard]] uint64_t take_scratch(int device, uint64_t wanted, uint64_t total);
    void give_back_scratch(int device, uint64_t bytes);

  private:
    uint64_t limit_ = 0;
    mutable std::mutex mutex_;
    std::map<int, uint64_t> held_, scratch_;
};

}  // namespace slimwire
