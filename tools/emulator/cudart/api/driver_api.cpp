// What programs get of the CUDA driver from cudaGetDriverEntryPoint: memory at addresses that they
// reserve. Nothing of it waits for work; SLIMWIRE_EMU_FAULT counts the functions by their names.
#include <cuda.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "tools/emulator/cudart/api/exports.h"
#include "tools/emulator/cudart/machine/runtime.h"

using namespace slimwire::emulator;

namespace {

// Codes that both APIs have are the same in both. The runtime's last error stays.
template <class Body>
CUresult driver_call(const char* function, const Body& body) {
    const cudaError_t before = last_error(false);
    const cudaError_t error = unsafe_call(
        [&](Runtime& runtime) { return body(runtime) ? cudaSuccess : cudaErrorInvalidValue; },
        function);
    (void)last_error(true);
    remember(before);
    return static_cast<CUresult>(error);
}

bool on_device(const Runtime& runtime, const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && runtime.valid_device(location.id);
}

bool known(const Runtime& runtime, const CUmemAllocationProp* properties) {
    return properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE &&
           on_device(runtime, properties->location);
}

CUresult address_reserve(CUdeviceptr* out,
                         size_t bytes,
                         size_t alignment,
                         CUdeviceptr wanted,
                         unsigned long long flags) {
    return driver_call("cuMemAddressReserve", [&](Runtime& runtime) {
        if (out == nullptr || wanted != 0 || flags != 0 ||
            alignment > DeviceMemory::kGranuleBytes) {
            return false;
        }
        *out = runtime.memory.reserve_addresses(bytes);
        return *out != 0;
    });
}

CUresult address_free(CUdeviceptr address, size_t bytes) {
    return driver_call("cuMemAddressFree", [&](Runtime& runtime) {
        return runtime.memory.free_addresses(address, bytes);
    });
}

CUresult create(CUmemGenericAllocationHandle* handle,
                size_t bytes,
                const CUmemAllocationProp* properties,
                unsigned long long flags) {
    return driver_call("cuMemCreate", [&](Runtime& runtime) {
        if (handle == nullptr || flags != 0 || !known(runtime, properties)) {
            return false;
        }
        const int device = properties->location.id;
        const void* memory = with_trimmed_pool(runtime, device, [&] {
            return reinterpret_cast<void*>(runtime.memory.create(device, bytes));
        });
        *handle = reinterpret_cast<uintptr_t>(memory);
        if (*handle != 0 && runtime.settings().strict) {
            runtime.memory.poison(memory, bytes);
        }
        return *handle != 0;
    });
}

CUresult release(CUmemGenericAllocationHandle handle) {
    return driver_call("cuMemRelease",
                       [&](Runtime& runtime) { return runtime.memory.release_created(handle); });
}

CUresult map(CUdeviceptr address,
             size_t bytes,
             size_t offset,
             CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
    return driver_call("cuMemMap", [&](Runtime& runtime) {
        return offset == 0 && flags == 0 && runtime.memory.map(address, bytes, handle);
    });
}

CUresult unmap(CUdeviceptr address, size_t bytes) {
    return driver_call("cuMemUnmap",
                       [&](Runtime& runtime) { return runtime.memory.unmap(address, bytes); });
}

// Devices reach each other's memory here, whatever is said about another one.
CUresult set_access(CUdeviceptr address,
                    size_t bytes,
                    const CUmemAccessDesc* access,
                    size_t count) {
    return driver_call("cuMemSetAccess", [&](Runtime& runtime) {
        const auto* const end = access + count;
        if (count == 0 || std::any_of(access, end, [&](const CUmemAccessDesc& one) {
                return !on_device(runtime, one.location);
            })) {
            return false;
        }
        const bool any = std::any_of(access, end, [](const CUmemAccessDesc& one) {
            return one.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        });
        return runtime.memory.set_access(address, bytes, any);
    });
}

CUresult granularity(size_t* bytes,
                     const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags) {
    return driver_call("cuMemGetAllocationGranularity", [&](Runtime& runtime) {
        if (bytes == nullptr || !known(runtime, properties)) {
            return false;
        }
        *bytes = DeviceMemory::kGranuleBytes;
        return true;
    });
}

// A definition as its declared type: a signature which differs does not compile.
template <class Declared>
void* as(Declared* definition) {
    return reinterpret_cast<void*>(definition);
}

// Null: there is none of this name.
void* driver_function(std::string_view name) {
    const std::pair<std::string_view, void*> functions[] = {
        {"cuMemAddressReserve", as<decltype(cuMemAddressReserve)>(address_reserve)},
        {"cuMemAddressFree", as<decltype(cuMemAddressFree)>(address_free)},
        {"cuMemCreate", as<decltype(cuMemCreate)>(create)},
        {"cuMemRelease", as<decltype(cuMemRelease)>(release)},
        {"cuMemMap", as<decltype(cuMemMap)>(map)},
        {"cuMemUnmap", as<decltype(cuMemUnmap)>(unmap)},
        {"cuMemSetAccess", as<decltype(cuMemSetAccess)>(set_access)},
        {"cuMemGetAllocationGranularity", as<decltype(cuMemGetAllocationGranularity)>(granularity)},
    };
    const auto* const found =
        std::find_if(std::begin(functions), std::end(functions),
                     [&](const auto& function) { return function.first == name; });
    return found != std::end(functions) ? found->second : nullptr;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol,
                                             void** func_ptr,
                                             unsigned int /*cuda_version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* driver_status) {
    return call([&](Runtime&) {
        if (symbol == nullptr || func_ptr == nullptr) {
            return cudaErrorInvalidValue;
        }
        *func_ptr = driver_function(symbol);
        if (driver_status != nullptr) {
            *driver_status = *func_ptr != nullptr ? cudaDriverEntryPointSuccess
                                                  : cudaDriverEntryPointSymbolNotFound;
        }
        return *func_ptr != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
    });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol,
                                    void** func_ptr,
                                    unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* driver_status) {
    return cudaGetDriverEntryPointByVersion(symbol, func_ptr, CUDART_VERSION, flags, driver_status);
}
