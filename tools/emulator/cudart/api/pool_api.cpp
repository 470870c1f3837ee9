// The stream-ordered allocator and its pools.
#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/operations.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

cudaError_t no_memory_nodes(Runtime& runtime, Stream& stream, const char* function) {
    say("%s in a capture: the emulator's graphs have no memory nodes", function);
    (void)runtime.captures.refuse(stream);
    return cudaErrorNotSupported;
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
    if (stream->capturing()) {
        return no_memory_nodes(runtime, *stream, "cudaMallocAsync");
    }
    *pointer = bytes == 0 ? nullptr : with_trimmed_pool(runtime.device(pool.device()), [&] {
        return pool.allocate(bytes, stream);
    });
    if (runtime.settings().strict && bytes != 0) {
        // In the order of the stream: a block that is reused may still be read there.
        stream->enqueue(
            std::make_shared<FillOperation>(runtime.memory.alias(*pointer), poisoned_bytes(bytes),
                                            kPoison, poisoned_bytes(bytes), 1),
            true);
    }
    return cudaSuccess;
}

}  // namespace

cudaError_t cudaMallocAsync(void** device_pointer, size_t size, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return allocate_from_pool(runtime, *target.device().current_pool(), device_pointer, size,
                                  stream);
    });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer,
                                    size_t size,
                                    cudaMemPool_t mem_pool,
                                    cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream&) {
        const std::shared_ptr<Pool> pool = runtime.pools.find(mem_pool);
        return pool == nullptr ? cudaErrorInvalidValue
                               : allocate_from_pool(runtime, *pool, pointer, size, stream);
    });
}

cudaError_t cudaFreeAsync(void* device_pointer, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        if (device_pointer == nullptr) {
            return cudaSuccess;
        }
        if (target.capturing()) {
            return no_memory_nodes(runtime, target, "cudaFreeAsync");
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
