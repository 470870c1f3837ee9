#include "tools/emulator/nccl/transport/device.h"

#include <string>

extern "C" const slimwire::EmulatorApi* slimwire_emulator_api(uint32_t version);

namespace slimwire::emu {

const EmulatorApi& emulator_api() noexcept {
    static const EmulatorApi* const api = slimwire_emulator_api(kEmulatorAbiVersion);
    return *api;
}

namespace {

thread_local bool t_own = false;

}  // namespace

int device_count() noexcept {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Status cuda_check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) {
        return {};
    }
    (void)cudaGetLastError();  // as NCCL does: the program hears of it from NCCL only
    return {Code::kCudaError,
            std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)};
}

void begin_own_thread() noexcept {
    t_own = true;
}

DeviceScope::DeviceScope(int device) noexcept {
    int current = -1;
    if (cuda_check(cudaGetDevice(&current), "cudaGetDevice").ok() && current != device &&
        cuda_check(cudaSetDevice(device), "cudaSetDevice").ok()) {
        previous_ = current;
    }
}

DeviceScope::~DeviceScope() {
    if (previous_ >= 0 && !t_own) {
        (void)cuda_check(cudaSetDevice(previous_), "cudaSetDevice");
    }
}

}  // namespace slimwire::emu
