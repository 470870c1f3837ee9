// Allocation, pools, host memory, pointer queries.
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
                runtime, device, [&] { return runtime.memory.allocate(device, size); });
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

// The stream-ordered allocator and its pools.

namespace {

cudaError_t no_memory_nodes(Runtime& runtime, Stream& stream, const char* function) {
    say("%s in a capture: the emulator's graphs have no memory nodes", function);
    (void)runtime.captures.refuse(stream);
    return cudaErrorNotSupported;
}

cudaError_t allocate_from_pool(
    Runtime& runtime, cudaMemPool_t handle, void** pointer, size_t bytes, Stream& target) {
    const std::shared_ptr<Pool> pool = runtime.pools.find(handle);
    const std::shared_ptr<Stream> stream = target.shared_from_this();
    if (pool == nullptr || pointer == nullptr) {
        return cudaErrorInvalidValue;
    }
    if (stream->capturing()) {
        return no_memory_nodes(runtime, *stream, "cudaMallocAsync");
    }
    *pointer = bytes == 0 ? nullptr : with_trimmed_pool(runtime, pool->device(), [&] {
        return pool->allocate(bytes, stream);
    });
    if (runtime.settings().strict && bytes != 0) {
        // In the order of the stream: a block that is reused may still be read there.
        stream->enqueue(
            make_operation("cudaMallocAsync", [&memory = runtime.memory, fresh = *pointer,
                                               bytes] { memory.poison(fresh, bytes); }),
            true);
    }
    return cudaSuccess;
}

// Runs body(runtime, pool); a pool that is none is an invalid value.
template <class Body>
cudaError_t pool_call(cudaMemPool_t handle,
                      Body&& body,
                      const char* function = __builtin_FUNCTION()) {
    return device_call(
        [&](Runtime& runtime) {
            const std::shared_ptr<Pool> pool = runtime.pools.find(handle);
            return pool == nullptr ? cudaErrorInvalidValue : body(runtime, pool);
        },
        function);
}

// Its value is an int; those of others have 64 bits.
bool is_flag(cudaMemPoolAttr attribute) {
    return attribute <= cudaMemPoolReuseAllowInternalDependencies;
}

}  // namespace

cudaError_t cudaMallocAsync(void** device_pointer, size_t size, cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return allocate_from_pool(runtime, target.device().default_pool, device_pointer, size,
                                  target);
    });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer,
                                    size_t size,
                                    cudaMemPool_t mem_pool,
                                    cudaStream_t stream) {
    return work_call(stream, [&](Runtime& runtime, Stream& target) {
        return allocate_from_pool(runtime, mem_pool, pointer, size, target);
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
            target.enqueue(release_operation(runtime.memory, device_pointer));
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
    return pool_call(mem_pool, [&](Runtime& runtime, const std::shared_ptr<Pool>& pool) {
        if (runtime.device(pool->device()).default_pool == mem_pool) {
            return cudaErrorInvalidValue;
        }
        if (Stream::on_worker()) {
            return cudaErrorNotPermitted;
        }
        runtime.pools.remove(mem_pool);
        pool->close();
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t mem_pool, size_t min_bytes_to_keep) {
    return pool_call(mem_pool, [&](Runtime&, const std::shared_ptr<Pool>& pool) {
        pool->trim(min_bytes_to_keep);
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t mem_pool, cudaMemPoolAttr attr, void* value) {
    return pool_call(mem_pool, [&](Runtime&, const std::shared_ptr<Pool>& pool) {
        if (value == nullptr) {
            return cudaErrorInvalidValue;
        }
        const uint64_t number = is_flag(attr) ? static_cast<uint64_t>(*static_cast<int*>(value))
                                              : *static_cast<uint64_t*>(value);
        return pool->set_attribute(attr, number) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t mem_pool, cudaMemPoolAttr attr, void* value) {
    return pool_call(mem_pool, [&](Runtime&, const std::shared_ptr<Pool>& pool) {
        if (value == nullptr || attr < cudaMemPoolReuseFollowEventDependencies ||
            attr > cudaMemPoolAttrUsedMemHigh) {
            return cudaErrorInvalidValue;
        }
        const uint64_t number = pool->attribute(attr);
        if (is_flag(attr)) {
            *static_cast<int*>(value) = static_cast<int>(number);
        } else {
            *static_cast<uint64_t*>(value) = number;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t mem_pool,
                                 const cudaMemAccessDesc* desc_list,
                                 size_t count) {
    return pool_call(mem_pool, [&](Runtime&, const std::shared_ptr<Pool>&) {
        // Every emulated device reaches all device memory; there is nothing to change.
        return desc_list == nullptr && count != 0 ? cudaErrorInvalidValue : cudaSuccess;
    });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* mem_pool, int device) {
    return device_call([&](Runtime& runtime) {
        return runtime.valid_device(device) ? give(mem_pool, runtime.device(device).default_pool)
                                            : cudaErrorInvalidDevice;
    });
}
