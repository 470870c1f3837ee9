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
        stream->enqueue(std::make_shared<PoisonOperation>(runtime.memory, *pointer, bytes), true);
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
        return allocate_from_pool(runtime, *target.device().default_pool(), device_pointer, size,
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
    return pool_call(mem_pool, [&](Runtime& runtime, const std::shared_ptr<Pool>& pool) {
        if (runtime.device(pool->device()).default_pool() == pool) {
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
        return runtime.valid_device(device)
                   ? give(mem_pool,
                          runtime.pools.find_or_add(runtime.device(device).default_pool()))
                   : cudaErrorInvalidDevice;
    });
}
