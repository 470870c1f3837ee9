// How the emulated NCCL reaches the emulated CUDA Runtime beyond the public functions. Both live in
// one process; the marker symbol is always there because libnccl.so.2 is linked to libcudart.so.13.
#pragma once

#include "codecs/base/emulator_abi.h"
#include "codecs/base/status.h"

namespace slimwire::emu {

[[nodiscard]] const EmulatorApi& emulator_api() noexcept;

// Devices of this process; 0 when the runtime says none.
[[nodiscard]] int device_count() noexcept;

// ok for cudaSuccess; otherwise kCudaError with `what` and the runtime's text.
Status cuda_check(cudaError_t error, const char* what);

// The thread is NCCL's own: it keeps the device of its last DeviceScope, because going back to the
// one that it began with would make a context there.
void begin_own_thread() noexcept;

// Makes `device` current for its lifetime.
class DeviceScope {
  public:
    explicit DeviceScope(int device) noexcept;
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    int previous_ = -1;
};

}  // namespace slimwire::emu
