// The current device of a thread, for as long as a scope lasts. Used around every series of device
// calls by whoever is called on threads of others; any thread.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"

namespace slimwire {

// Sets the current device of the thread, and lets it allocate and query although another thread may
// be capturing a graph, which that would invalidate otherwise. Restores both at the end of the
// scope.
class DeviceScope {
  public:
    DeviceScope(const DeviceApi& api, int device) noexcept;
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    const DeviceApi& api_;
    int former_ = -1;
    bool changed_ = false;
    bool relaxed_ = false;
    cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace slimwire
