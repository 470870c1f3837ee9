// Allocation, host memory, pointer queries, pools.
#include <cstring>
#include <limits>

#include "tools/emulator/cudart/exports.h"
#include "tools/emulator/cudart/operations.h"
#include "tools/emulator/cudart/runtime.h"

using namespace slimwire::emulator;

namespace {

// Runs `allocate` again after cached blocks of the device went back, if it found no room.
template <class Allocate>
void* with_trimmed_pool(Device& device, Allocate allocate) {
    try {
        return allocate();
    } catch (const std::bad_alloc&) {
        device.default_pool()->trim(0);
        device.current_pool()->trim(0);
        return allocate();
    }
}

// Frees device memory at once. All work that could use it is done.
cudaError_t release_device_memory(Runtime& runtime, const Allocation& allocation) {
    if (allocation.pool != nullptr) {
        allocation.pool->forget(allocation.block_bytes);
    }
    return runtime.memory.release(reinterpret_cast<void*>(allocation.base)) ? cudaSuccess
                                                                            : cudaErrorInvalidValue;
}

cudaError_t allocate_host(void** host, size_t bytes, cudaMemoryType type, unsigned int flags) {
    return device_call([&](Runtime& runtime) {
        if (host == nullptr) {
            return cudaErrorInvalidValue;
        }
        *host = bytes == 0 ? nullptr
                           : runtime.host_memory.allocate(bytes, type, flags, current_device());
        return cudaSuccess;
    });
}

cudaError_t allocate_from_pool(
    Runtime& runtime, Pool& pool, void** pointer, size_t bytes, cudaStream_t handle) {
    const std::shared_ptr<Stream> stream = runtime.stream(handle);
    if (stream == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    if (pointer == nullptr) {
        return cudaErrorInvalidValue;
    }
    *pointer = bytes == 0 ? nullptr : with_trimmed_pool(runtime.device(pool.device()), [&] {
        return pool.allocate(bytes, stream);
    });
    return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** device_pointer, size_t size) {
    return device_call([&](Runtime& runtime) {
        if (device_pointer == nullptr) {
            return cudaErrorInvalidValue;
        }
        *device_pointer = nullptr;
        if (size != 0) {
            const int device = current_device();
            *device_pointer = with_trimmed_pool(
                runtime.device(device), [&] { return runtime.memory.allocate(device, size); });
        }
        return cudaSuccess;
    });
}

cudaError_t cudaFree(void* device_pointer) {
    return device_call([&](Runtime& runtime) {
        if (device_pointer == nullptr) {
            return cudaSuccess;
        }
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        if (runtime.memory.contains(device_pointer)) {
            const auto allocation = runtime.memory.find(device_pointer);
            if (!allocation || allocation->base != reinterpret_cast<uintptr_t>(device_pointer)) {
                return cudaErrorInvalidValue;
            }
            runtime.device(allocation->device).synchronize();
            return release_device_memory(runtime, *allocation);
        }
        runtime.device(current_device()).synchronize();
        return runtime.host_memory.release(device_pointer, cudaMemoryTypeManaged)
                   ? cudaSuccess
                   : cudaErrorInvalidValue;
    });
}

cudaError_t cudaMallocPitch(void** device_pointer, size_t* pitch, size_t width, size_t height) {
    if (pitch == nullptr) {
        return remember(cudaErrorInvalidValue);
    }
    *pitch = (width + 511) / 512 * 512;
    if (height != 0 && *pitch > std::numeric_limits<size_t>::max() / height) {
        return remember(cudaErrorInvalidValue);
    }
    return cudaMalloc(device_pointer, *pitch * height);
}

cudaError_t cudaMallocManaged(void** device_pointer, size_t size, unsigned int flags) {
    if (size == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) {
        return remember(cudaErrorInvalidValue);
    }
    return allocate_host(device_pointer, size, cudaMemoryTypeManaged, flags);
}

cudaError_t cudaMallocHost(void** pointer, size_t size) {
    return allocate_host(pointer, size, cudaMemoryTypeHost, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** host, size_t size, unsigned int flags) {
    if (flags > (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) {
        return remember(cudaErrorInvalidValue);
    }
    return allocate_host(host, size, cudaMemoryTypeHost, flags);
}

cudaError_t cudaFreeHost(void* pointer) {
    return device_call([&](Runtime& runtime) {
        if (pointer == nullptr) {
            return cudaSuccess;
        }
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        const auto range = runtime.host_memory.find(pointer);
        if (!range) {
            return cudaErrorInvalidValue;
        }
        runtime.device(range->device).synchronize();  // a queued copy may still use it
        return runtime.host_memory.release(pointer, cudaMemoryTypeHost) ? cudaSuccess
                                                                        : cudaErrorInvalidValue;
    });
}

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned int flags) {
    return device_call([&](Runtime& runtime) {
        if (pointer == nullptr || size == 0 || runtime.memory.contains(pointer)) {
            return cudaErrorInvalidValue;
        }
        return runtime.host_memory.add_registered(pointer, size, flags, current_device());
    });
}

cudaError_t cudaHostUnregister(void* pointer) {
    return device_call([&](Runtime& runtime) {
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

cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
    return device_call([&](Runtime& runtime) {
        const auto range = runtime.host_memory.find(host);
        if (flags == nullptr || !range || range->type != cudaMemoryTypeHost) {
            return cudaErrorInvalidValue;
        }
        *flags = range->flags | cudaHostAllocMapped;
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
            attributes->type = range->type;
            attributes->device = range->device;
            attributes->devicePointer = same;
            attributes->hostPointer = same;
        } else if (!runtime.memory.contains(pointer)) {
            attributes->hostPointer = same;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaMallocAsync(void** device_pointer, size_t size, cudaStream_t stream) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        return allocate_from_pool(runtime, *target.device().current_pool(), device_pointer, size,
                                  stream);
    });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer,
                                    size_t size,
                                    cudaMemPool_t mem_pool,
                                    cudaStream_t stream) {
    return stream_call(stream, [&](Runtime& runtime, Stream&) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        return pool == nullptr ? cudaErrorInvalidValue
                               : allocate_from_pool(runtime, *pool, pointer, size, stream);
    });
}

cudaError_t cudaFreeAsync(void* device_pointer, cudaStream_t stream) {
    return stream_call(stream, [&](Runtime& runtime, Stream& target) {
        if (device_pointer == nullptr) {
            return cudaSuccess;
        }
        const auto allocation = runtime.memory.find(device_pointer);
        if (!allocation || allocation->base != reinterpret_cast<uintptr_t>(device_pointer)) {
            return cudaErrorInvalidValue;
        }
        if (allocation->pool != nullptr) {
            allocation->pool->free(device_pointer, allocation->block_bytes,
                                   target.shared_from_this());
        } else {
            runtime.memory.set_live(device_pointer, false, 0);
            target.enqueue(std::make_shared<ReleaseOperation>(runtime.memory, device_pointer));
        }
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* mem_pool, const cudaMemPoolProps* pool_props) {
    return device_call([&](Runtime& runtime) {
        if (mem_pool == nullptr || pool_props == nullptr ||
            pool_props->allocType != cudaMemAllocationTypePinned) {
            return cudaErrorInvalidValue;
        }
        if (pool_props->location.type != cudaMemLocationTypeDevice ||
            pool_props->handleTypes != cudaMemHandleTypeNone) {
            return cudaErrorNotSupported;
        }
        if (!runtime.valid_device(pool_props->location.id)) {
            return cudaErrorInvalidDevice;
        }
        *mem_pool = runtime.pools.add(
            std::make_shared<Pool>(runtime.memory, pool_props->location.id, pool_props->maxSize));
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t mem_pool) {
    return device_call([&](Runtime& runtime) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        if (pool == nullptr || runtime.device(pool->device()).default_pool() == pool) {
            return cudaErrorInvalidValue;
        }
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        runtime.pools.remove(mem_pool);
        Device& device = runtime.device(pool->device());
        if (device.current_pool() == pool) {
            device.set_current_pool(device.default_pool());
        }
        pool->close();
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t mem_pool, size_t min_bytes_to_keep) {
    return device_call([&](Runtime& runtime) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        if (pool == nullptr) {
            return cudaErrorInvalidValue;
        }
        pool->trim(min_bytes_to_keep);
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t mem_pool, cudaMemPoolAttr attr, void* value) {
    return device_call([&](Runtime& runtime) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        if (pool == nullptr || value == nullptr) {
            return cudaErrorInvalidValue;
        }
        switch (attr) {
            case cudaMemPoolReuseFollowEventDependencies:
                pool->reuse_follow_event_dependencies = *static_cast<int*>(value);
                return cudaSuccess;
            case cudaMemPoolReuseAllowOpportunistic:
                pool->reuse_allow_opportunistic = *static_cast<int*>(value);
                return cudaSuccess;
            case cudaMemPoolReuseAllowInternalDependencies:
                pool->reuse_allow_internal_dependencies = *static_cast<int*>(value);
                return cudaSuccess;
            case cudaMemPoolAttrReleaseThreshold:
                pool->release_threshold_bytes = *static_cast<uint64_t*>(value);
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemHigh:
            case cudaMemPoolAttrUsedMemHigh:
                if (*static_cast<uint64_t*>(value) != 0) {
                    return cudaErrorInvalidValue;  // high marks can only be reset
                }
                pool->reset_high_marks(attr == cudaMemPoolAttrReservedMemHigh,
                                       attr == cudaMemPoolAttrUsedMemHigh);
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemCurrent:
            case cudaMemPoolAttrUsedMemCurrent:
                return cudaErrorInvalidValue;
        }
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t mem_pool, cudaMemPoolAttr attr, void* value) {
    return device_call([&](Runtime& runtime) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        if (pool == nullptr || value == nullptr) {
            return cudaErrorInvalidValue;
        }
        const Pool::Statistics statistics = pool->statistics();
        switch (attr) {
            case cudaMemPoolReuseFollowEventDependencies:
                *static_cast<int*>(value) = pool->reuse_follow_event_dependencies;
                return cudaSuccess;
            case cudaMemPoolReuseAllowOpportunistic:
                *static_cast<int*>(value) = pool->reuse_allow_opportunistic;
                return cudaSuccess;
            case cudaMemPoolReuseAllowInternalDependencies:
                *static_cast<int*>(value) = pool->reuse_allow_internal_dependencies;
                return cudaSuccess;
            case cudaMemPoolAttrReleaseThreshold:
                *static_cast<uint64_t*>(value) = pool->release_threshold_bytes;
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemCurrent:
                *static_cast<uint64_t*>(value) = statistics.reserved_bytes;
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemHigh:
                *static_cast<uint64_t*>(value) = statistics.reserved_high_bytes;
                return cudaSuccess;
            case cudaMemPoolAttrUsedMemCurrent:
                *static_cast<uint64_t*>(value) = statistics.used_bytes;
                return cudaSuccess;
            case cudaMemPoolAttrUsedMemHigh:
                *static_cast<uint64_t*>(value) = statistics.used_high_bytes;
                return cudaSuccess;
        }
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t mem_pool,
                                 const cudaMemAccessDesc* desc_list,
                                 size_t count) {
    return device_call([&](Runtime& runtime) {
        // Every emulated device reaches all device memory; there is nothing to change.
        return runtime.pools.find(mem_pool) == nullptr || (desc_list == nullptr && count != 0)
                   ? cudaErrorInvalidValue
                   : cudaSuccess;
    });
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags,
                                 cudaMemPool_t mem_pool,
                                 cudaMemLocation* location) {
    return device_call([&](Runtime& runtime) {
        if (runtime.pools.find(mem_pool) == nullptr || flags == nullptr || location == nullptr) {
            return cudaErrorInvalidValue;
        }
        *flags = location->type == cudaMemLocationTypeDevice && runtime.valid_device(location->id)
                     ? cudaMemAccessFlagsProtReadWrite
                     : cudaMemAccessFlagsProtNone;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* mem_pool, int device) {
    return device_call([&](Runtime& runtime) {
        if (mem_pool == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (!runtime.valid_device(device)) {
            return cudaErrorInvalidDevice;
        }
        *mem_pool = runtime.pool_handle(runtime.device(device).default_pool());
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* mem_pool, int device) {
    return device_call([&](Runtime& runtime) {
        if (mem_pool == nullptr) {
            return cudaErrorInvalidValue;
        }
        if (!runtime.valid_device(device)) {
            return cudaErrorInvalidDevice;
        }
        *mem_pool = runtime.pool_handle(runtime.device(device).current_pool());
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t mem_pool) {
    return device_call([&](Runtime& runtime) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        if (!runtime.valid_device(device)) {
            return cudaErrorInvalidDevice;
        }
        if (pool == nullptr || pool->device() != device) {
            return cudaErrorInvalidValue;
        }
        runtime.device(device).set_current_pool(pool);
        return cudaSuccess;
    });
}
