// All device memory of collectives/ comes and goes here, and nothing here waits for work: what the
// device has to do may wait for a peer, whose host waits for a call that this thread has yet to
// make. Memory is of a pool of slimwire's own on each device, whose allocations depend on no
// pending work; cudaMalloc and cudaFree, which may wait for the whole device, are left for devices
// without pools. Memory that work may still use is retired behind an event, and freed by whoever
// comes here after the event has happened.
//
// One a process; thread-safe. No lock is held across a CUDA call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "codecs/base/device.h"

namespace slimwire {

class DeviceMemory {
  public:
    // As cudaMalloc on `device`, of any stream from then on.
    cudaError_t allocate(const DeviceApi& api, int device, uint64_t bytes, void** memory);
    // Of memory that no work uses any more; null: nothing.
    void free(const DeviceApi& api, int device, void* memory) noexcept;
    // Of memory that is used until `end`, an event that is ours from then on; null: by nothing.
    void retire(const DeviceApi& api,
                int device,
                cudaEvent_t end,
                std::vector<void*> memory) noexcept;
    // Frees what is retired and no longer in use, and gives the devices back what is free.
    void collect(const DeviceApi& api) noexcept;
    // What the pool has of `device`, in use or not; nothing where there is no pool.
    std::optional<uint64_t> reserved(const DeviceApi& api, int device) noexcept;

  private:
    struct Pool {
        cudaMemPool_t handle = nullptr;  // null: the device has none
        cudaStream_t stream = nullptr;   // nothing else ever runs on it
    };
    struct Retired {
        cudaEvent_t end = nullptr;
        std::vector<void*> memory;
    };
    struct OfDevice {
        std::mutex mutex;  // of the rest
        std::optional<Pool> pool;
        std::vector<Retired> retired;
    };
    OfDevice& of_device(int device);
    static Pool make_pool(const DeviceApi& api, int device) noexcept;
    static Pool pool_of(const DeviceApi& api, int device, OfDevice* of) noexcept;
    static void free_in(const DeviceApi& api, const Pool& pool, void* memory) noexcept;
    static void collect_on(const DeviceApi& api, int device, OfDevice* of) noexcept;

    std::mutex mutex_;  // of the map, whose entries stay
    std::map<int, OfDevice> devices_;
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

  private:
    DeviceMemory* const owner_;
    const DeviceApi& api_;
    const int device_;
    cudaStream_t stream_ = nullptr;  // waits for the events that have not happened
    bool lost_ = false;              // when the memory is free is not known
    std::vector<void*> memory_;
};

}  // namespace slimwire
