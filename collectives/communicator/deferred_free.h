// Device memory of aborted communicators whose last work had not ended: it is freed once it has. An
// abort must not wait for work that hangs until the program has aborted all that it hangs on, and a
// program that goes on with new communicators must not lose memory by each abort.
//
// Used by lifecycle.cpp and features that free (park) and after ncclCommAbort (collect): freeing
// waits for the device, which a call must not. Any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "codecs/base/device.h"

namespace slimwire {

struct DeferredFree {
    int device = 0;
    cudaEvent_t end = nullptr;  // of the work that uses the memory; ours from then on
    std::vector<void*> memory;
};

class DeferredFreeList {
  public:
    void park(DeferredFree memory);
    // Frees what is no longer in use and waits up to `patience_us` for the rest.
    void collect(const DeviceApi& api, uint64_t patience_us);

  private:
    std::mutex mutex_;
    std::vector<DeferredFree> parked_;
    std::atomic<bool> any_{false};
};

}  // namespace slimwire
