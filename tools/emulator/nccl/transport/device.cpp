#include "tools/emulator/nccl/transport/device.h"

#include <string>

extern "C" const slimwire::EmulatorApi* slimwire_emulator_api(uint32_t version);

namespace slimwire::emu {

const EmulatorApi& emulator_api() noexcept {
    static const EmulatorApi* const api = slimwire_emulator_api(kEmulatorAbiVersion);
    return *api;
}

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

DeviceScope::DeviceScope(int device) noexcept {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current != device &&
        cudaSetDevice(device) == cudaSuccess) {
        previous_ = current;
    }
}

DeviceScope::~DeviceScope() {
    if (previous_ >= 0) {
        (void)cudaSetDevice(previous_);
    }
}

}  // namespace slimwire::emu
