#include "codecs/base/device.h"

#include <atomic>
#include <string>

namespace slimwire {
namespace {

std::atomic<DeviceViewFunction> g_view{nullptr};

}  // namespace

Status cuda_status(const DeviceApi& api, cudaError_t error, const char* what) {
    if (error == cudaSuccess) {
        return {};
    }
    std::string text =
        std::string(what) + ": cuda error " + std::to_string(static_cast<int>(error));
    if (api.get_error_string != nullptr) {
        text += std::string(" (") + api.get_error_string(error) + ")";
    }
    if (api.get_last_error != nullptr) {
        (void)api.get_last_error();
    }
    return {Code::kCudaError, std::move(text)};
}

bool tolerate(const DeviceApi& api, cudaError_t error) {
    if (error != cudaSuccess && api.get_last_error != nullptr) {
        (void)api.get_last_error();
    }
    return error == cudaSuccess;
}

void set_device_view(DeviceViewFunction view) noexcept {
    g_view.store(view, std::memory_order_release);
}

void* device_view(const void* pointer) noexcept {
    const DeviceViewFunction view = g_view.load(std::memory_order_acquire);
    return view != nullptr && pointer != nullptr ? view(pointer) : const_cast<void*>(pointer);
}

}  // namespace slimwire
