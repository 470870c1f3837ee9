// What a tensor's thresholds (codecs/sparse/threshold_control.h) have come to, for the report: now
// and then a copy of their state travels to the host behind a call, and a later call adds it up.
// Nobody waits for it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "codecs/base/device.h"
#include "collectives/observe/stats.h"

namespace slimwire {

// Of one communicator; used by one thread at a time, on its device.
class SurvivorCounts {
  public:
    // Enqueues a copy of `bytes` of state, each run's `run_bytes`, on `stream`, unless one is under
    // way. What fails is not read.
    void begin(const DeviceApi& api,
               CallStats* key,
               const void* state,
               size_t bytes,
               size_t run_bytes,
               cudaStream_t stream) noexcept;
    // Adds up what has arrived.
    void look(const DeviceApi& api) noexcept;
    // No copy may be under way, unless `lost`: then its memory is left.
    void release(const DeviceApi& api, bool lost) noexcept;

  private:
    void* copy_ = nullptr;  // pinned, kBytes
    cudaEvent_t end_ = nullptr;
    CallStats* key_ = nullptr;  // null: none is under way
    size_t bytes_ = 0, run_bytes_ = 0;
};

}  // namespace slimwire
