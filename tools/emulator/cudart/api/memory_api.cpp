// Allocation, host memory, pointer queries.
#include <cstring>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

// Frees device memory at once. All work that could use it is done.
cudaError_t release_device_memory(Runtime& runtime, const Allocation& allocation) {
    if (allocation.pool != nullptr) {
        allocation.pool->forget(allocation.block_bytes);
    }
    return runtime.memory.release(reinterpret_cast<void*>(allocation.base)) ? cudaSuccess
                                                                            : cudaErrorInvalidValue;
}

cudaError_t allocate_host(void** host,
                          size_t bytes,
                          unsigned int flags,
                          const char* function = __builtin_FUNCTION()) {
    return unsafe_call(
        [&](Runtime& runtime) {
            if (host == nullptr) {
                return cudaErrorInvalidValue;
            }
            wait_for_device(runtime, function);
            *host =
                bytes == 0 ? nullptr : runtime.host_memory.allocate(bytes, flags, current_device());
            if (runtime.settings().strict && bytes != 0) {
                std::memset(*host, kPoison, poisoned_bytes(bytes));
            }
            return cudaSuccess;
        },
        function);
}

}  // namespace

cudaError_t cudaMalloc(void** device_pointer, size_t size) {
    return unsafe_call([&](Runtime& runtime) {
        if (device_pointer == nullptr) {
            return cudaErrorInvalidValue;
        }
        *device_pointer = nullptr;
        wait_for_device(runtime, "cudaMalloc");
        if (size != 0) {
            const int device = current_device();
            *device_pointer = with_trimmed_pool(
                runtime.device(device), [&] { return runtime.memory.allocate(device, size); });
            if (runtime.settings().strict) {
                runtime.memory.poison(*device_pointer, size);
            }
        }
        return cudaSuccess;
    });
}

cudaError_t cudaFree(void* device_pointer) {
    return unsafe_call([&](Runtime& runtime) {
        if (device_pointer == nullptr) {
            return cudaSuccess;
        }
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        may_wait(runtime, "cudaFree");
        if (runtime.memory.contains(device_pointer)) {
            const auto allocation = runtime.memory.find(device_pointer);
            if (!allocation || allocation->base != reinterpret_cast<uintptr_t>(device_pointer)) {
                return cudaErrorInvalidValue;
            }
            runtime.device(allocation->device).synchronize();
            return release_device_memory(runtime, *allocation);
        }
        runtime.device(current_device()).synchronize();
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaMallocHost(void** pointer, size_t size) {
    return allocate_host(pointer, size, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** host, size_t size, unsigned int flags) {
    if (flags > (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) {
        return remember(cudaErrorInvalidValue);
    }
    return allocate_host(host, size, flags);
}

cudaError_t cudaFreeHost(void* pointer) {
    return unsafe_call([&](Runtime& runtime) {
        if (pointer == nullptr) {
            return cudaSuccess;
        }
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        may_wait(runtime, "cudaFreeHost");
        const auto range = runtime.host_memory.find(pointer);
        if (!range) {
            return cudaErrorInvalidValue;
        }
        runtime.device(range->device).synchronize();  // a queued copy may still use it
        return runtime.host_memory.release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned int flags) {
    return unsafe_call([&](Runtime& runtime) {
        wait_for_device(runtime, "cudaHostRegister");
        if (pointer == nullptr || size == 0 || runtime.memory.contains(pointer)) {
            return cudaErrorInvalidValue;
        }
        return runtime.host_memory.add_registered(pointer, size, flags, current_device());
    });
}

cudaError_t cudaHostUnregister(void* pointer) {
    return unsafe_call([&](Runtime& runtime) {
        if (pointer == nullptr) {
            return cudaErrorInvalidValue;
        }
        return runtime.host_memory.remove_registered(pointer);
    });
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer,
                                     void* host_pointer,
                                     unsigned int flags) {
    return device_call([&](Runtime& runtime) {
        if (device_pointer == nullptr || host_pointer == nullptr || flags != 0 ||
            !runtime.host_memory.find(host_pointer)) {
            return cudaErrorInvalidValue;
        }
        *device_pointer = host_pointer;
        return cudaSuccess;
    });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    return device_call([&](Runtime& runtime) {
        if (free_bytes == nullptr || total_bytes == nullptr) {
            return cudaErrorInvalidValue;
        }
        *total_bytes = runtime.memory.device_bytes();
        *free_bytes = *total_bytes - runtime.memory.used_bytes(current_device());
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    return device_call([&](Runtime& runtime) {
        if (attributes == nullptr) {
            return cudaErrorInvalidValue;
        }
        std::memset(attributes, 0, sizeof *attributes);
        void* same = const_cast<void*>(pointer);
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = cudaInvalidDeviceId;
        if (const auto allocation = runtime.memory.find(pointer)) {
            attributes->type = cudaMemoryTypeDevice;
            attributes->device = allocation->device;
            attributes->devicePointer = same;
        } else if (const auto range = runtime.host_memory.find(pointer)) {
            attributes->type = cudaMemoryTypeHost;
            attributes->device = range->device;
            attributes->devicePointer = same;
            attributes->hostPointer = same;
        } else if (!runtime.memory.contains(pointer)) {
            attributes->hostPointer = same;
        }
        return cudaSuccess;
    });
}
