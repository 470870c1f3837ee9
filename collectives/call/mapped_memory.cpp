#include "collectives/call/mapped_memory.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>

#include "codecs/base/own_stream.h"

namespace slimwire {
namespace {

constexpr uint64_t kAlignment = 512;
constexpr const char* kWhat = "memory of a communicator that is suspended or resumed";

struct Driver {
    decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
    decltype(&::cuMemAddressReserve) reserve = nullptr;
    decltype(&::cuMemAddressFree) free = nullptr;
    decltype(&::cuMemCreate) create = nullptr;
    decltype(&::cuMemRelease) release = nullptr;
    decltype(&::cuMemMap) map = nullptr;
    decltype(&::cuMemUnmap) unmap = nullptr;
    decltype(&::cuMemSetAccess) set_access = nullptr;
};

std::atomic<DriverEntry> driver_entry{nullptr};

template <class Function>
bool find(DriverEntry entry, const char* name, Function* function) noexcept {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    if (entry(name, &found, 0, &result) != cudaSuccess || result != cudaDriverEntryPointSuccess) {
        return false;
    }
    *function = reinterpret_cast<Function>(found);
    return found != nullptr;
}

// Null: CUDA does not have them.
const Driver* driver(const DeviceApi& api) noexcept {
    struct Found {
        Driver driver;
        bool all = false;
    };
    static const Found found = [&] {
        Found of;
        Driver& driver = of.driver;
        const DriverEntry entry = driver_entry;
        of.all = entry != nullptr &&
                 find(entry, "cuMemGetAllocationGranularity", &driver.granularity) &&
                 find(entry, "cuMemAddressReserve", &driver.reserve) &&
                 find(entry, "cuMemAddressFree", &driver.free) &&
                 find(entry, "cuMemCreate", &driver.create) &&
                 find(entry, "cuMemRelease", &driver.release) &&
                 find(entry, "cuMemMap", &driver.map) && find(entry, "cuMemUnmap", &driver.unmap) &&
                 find(entry, "cuMemSetAccess", &driver.set_access);
        if (entry != nullptr && !of.all) {
            (void)api.get_last_error();
        }
        return of;
    }();
    return found.all ? &found.driver : nullptr;
}

CUmemAllocationProp properties_of(int device) noexcept {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    // Nobody else may map it: they would keep the memory that a suspended communicator gives up. So
    // no captured call of NCCL's, which wants to, is given any of it.
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return properties;
}

cudaError_t error_of(CUresult result) noexcept {
    return result == CUDA_ERROR_OUT_OF_MEMORY ? cudaErrorMemoryAllocation
           : result == CUDA_SUCCESS           ? cudaSuccess
                                              : cudaErrorNotSupported;
}

// Memory at the addresses, which other devices of the process reach as well.
cudaError_t put(const DeviceApi& api,
                const Driver& cu,
                int device,
                uintptr_t address,
                uint64_t bytes,
                unsigned long long* handle) {
    const CUmemAllocationProp properties = properties_of(device);
    CUresult result = cu.create(handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS) {
        return error_of(result);
    }
    std::vector<CUmemAccessDesc> access = {
        {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    for (const int peer : peers_of(api, device)) {
        access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, peer}, access.front().flags});
    }
    result = cu.map(address, bytes, 0, *handle, 0);
    const bool mapped = result == CUDA_SUCCESS;
    if (mapped) {
        result = cu.set_access(address, bytes, access.data(), access.size());
        if (result != CUDA_SUCCESS) {  // a peer may be out of reach by now
            result = cu.set_access(address, bytes, access.data(), 1);
        }
    }
    if (result != CUDA_SUCCESS) {
        if (mapped) {
            (void)cu.unmap(address, bytes);
        }
        (void)cu.release(*handle);
    }
    return error_of(result);
}

void take(const Driver& cu, uintptr_t address, uint64_t bytes, unsigned long long handle) noexcept {
    (void)cu.unmap(address, bytes);
    (void)cu.release(handle);
}

}  // namespace

std::vector<int> peers_of(const DeviceApi& api, int device) {
    int devices = 0;
    std::vector<int> peers;
    if (!tolerate(api, api.get_device_count(&devices))) {
        return peers;
    }
    for (int peer = 0; peer < devices; ++peer) {
        int reaches = 0;
        if (peer != device && tolerate(api, api.device_can_access_peer(&reaches, peer, device)) &&
            reaches != 0) {
            peers.push_back(peer);
        }
    }
    return peers;
}

void set_driver_entry(DriverEntry entry) noexcept {
    driver_entry = entry;
}

// The first offset with that much room.
std::optional<uint64_t> MappedMemory::room(const Span& span, uint64_t bytes) noexcept {
    uint64_t from = 0;
    for (const auto& [offset, used] : span.used) {
        if (offset - from >= bytes) {
            return from;
        }
        from = offset + used.bytes;
    }
    return span.bytes - from >= bytes ? std::optional(from) : std::nullopt;
}

bool MappedMemory::fit(int device, uint64_t home, const Part& part, void** memory) {
    const std::lock_guard lock(mutex_);
    for (auto& [address, span] : spans_) {
        if (span.moving || span.device != device || span.home != home || span.away != nullptr) {
            continue;
        }
        if (const std::optional<uint64_t> offset = room(span, part.bytes)) {
            span.used.emplace(*offset, part);
            *memory = reinterpret_cast<void*>(address + *offset);
            return true;
        }
    }
    return false;
}

cudaError_t MappedMemory::allocate(
    const DeviceApi& api, int device, uint64_t home, uint64_t bytes, uint64_t kept, void** memory) {
    kept = std::min(bytes, kept);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const Driver* const cu = driver(api);
    if (cu == nullptr || bytes == 0) {
        return cudaErrorNotSupported;
    }
    if (fit(device, home, {bytes, kept}, memory)) {
        return cudaSuccess;
    }
    const CUmemAllocationProp properties = properties_of(device);
    size_t granule = 0;
    if (cu->granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        granule == 0) {
        return cudaErrorNotSupported;
    }
    Span span;
    span.device = device;
    span.home = home;
    span.bytes = (bytes + granule - 1) / granule * granule;
    CUdeviceptr address = 0;
    if (cu->reserve(&address, span.bytes, 0, 0, 0) != CUDA_SUCCESS) {
        return cudaErrorNotSupported;
    }
    const cudaError_t error = put(api, *cu, device, address, span.bytes, &span.handle);
    if (error != cudaSuccess) {
        (void)cu->free(address, span.bytes);
        return error;
    }
    span.used.emplace(0, Part{bytes, kept});
    *memory = reinterpret_cast<void*>(address);
    const std::lock_guard lock(mutex_);
    spans_.emplace(address, std::move(span));
    return cudaSuccess;
}

MappedMemory::Spans::const_iterator MappedMemory::span_of(const void* memory) const noexcept {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const auto after = spans_.upper_bound(address);
    return after != spans_.begin() &&
                   address - std::prev(after)->first < std::prev(after)->second.bytes
               ? std::prev(after)
               : spans_.end();
}

// Only of what is in the table no more.
void MappedMemory::drop(uintptr_t address, const Span& span) noexcept {
    const Driver& cu = *driver({});
    if (span.away == nullptr) {
        take(cu, address, span.bytes, span.handle);
    }
    (void)cu.free(address, span.bytes);
}

bool MappedMemory::free(const void* memory) noexcept {
    Spans::node_type empty;
    {
        const std::lock_guard lock(mutex_);
        const auto found = span_of(memory);
        if (found == spans_.end()) {
            return false;
        }
        Span& span = spans_.find(found->first)->second;
        span.used.erase(reinterpret_cast<uintptr_t>(memory) - found->first);
        if (!span.used.empty() || span.moving) {
            return true;
        }
        empty = spans_.extract(found);
    }
    drop(empty.key(), empty.mapped());
    return true;
}

Status MappedMemory::take_away(const DeviceApi& api, uintptr_t address, Span* span) {
    // Pages that nothing is moved to take no memory.
    std::unique_ptr<std::byte[], Free> bytes(
        static_cast<std::byte*>(std::calloc(span->bytes, sizeof(std::byte))));
    if (bytes == nullptr) {
        return {Code::kOutOfMemory, std::string(kWhat) + ": the host has no " +
                                        std::to_string(span->bytes) + " bytes for it"};
    }
    SLIMWIRE_TRY(on_own_stream(api, kWhat, [&](cudaStream_t stream) -> Status {
        for (const auto& [offset, moved] : span->moved) {
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(bytes.get() + offset, reinterpret_cast<void*>(address + offset),
                                 moved, cudaMemcpyDeviceToHost, stream),
                kWhat));
        }
        return {};
    }));
    take(*driver(api), address, span->bytes, span->handle);
    span->away = std::move(bytes);
    return {};
}

Status MappedMemory::bring_back(const DeviceApi& api, uintptr_t address, Span* span) {
    const Driver& cu = *driver(api);
    SLIMWIRE_TRY(
        cuda_status(api, put(api, cu, span->device, address, span->bytes, &span->handle), kWhat));
    Status status = on_own_stream(api, kWhat, [&](cudaStream_t stream) -> Status {
        SLIMWIRE_TRY(cuda_status(
            api, api.memset_async(reinterpret_cast<void*>(address), 0, span->bytes, stream),
            kWhat));
        for (const auto& [offset, moved] : span->moved) {
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(reinterpret_cast<void*>(address + offset),
                                 span->away.get() + offset, moved, cudaMemcpyHostToDevice, stream),
                kWhat));
        }
        return {};
    });
    if (status.ok()) {
        span->away.reset();
    } else {
        take(cu, address, span->bytes, span->handle);
    }
    return status;
}

// one(address, span) of every span of the home that is `away` or not; others wait for none of them.
template <class Move>
Status MappedMemory::move(uint64_t home, bool away, const Move& one) {
    std::vector<std::pair<uintptr_t, Span*>> spans;  // entries stay while they are moving
    {
        const std::lock_guard lock(mutex_);
        for (auto& [address, span] : spans_) {
            if (span.home == home && (span.away != nullptr) == away) {
                span.moving = true;
                spans.emplace_back(address, &span);
            }
        }
    }
    Status status;
    for (const auto& [address, span] : spans) {
        if (status.ok()) {
            status = one(address, span);
        }
    }
    Spans empty;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [address, span] : spans) {
            span->moving = false;
            if (span->used.empty()) {
                empty.insert(spans_.extract(address));
            }
        }
    }
    for (const auto& [address, span] : empty) {
        drop(address, span);
    }
    return status;
}

Result<MappedMemory::Taken> MappedMemory::suspend(const DeviceApi& api, uint64_t home, bool drop) {
    Taken taken;
    {
        const std::lock_guard lock(mutex_);
        for (auto& [address, span] : spans_) {
            if (span.home != home || span.away != nullptr) {
                continue;
            }
            span.moved.clear();
            for (const auto& [offset, part] : span.used) {
                const uint64_t kept = drop ? part.kept : part.bytes;
                taken.moved += kept;
                taken.dropped += part.bytes - kept;
                span.moved.emplace_back(offset, kept);
            }
        }
    }
    const Status status = move(
        home, false, [&](uintptr_t address, Span* span) { return take_away(api, address, span); });
    if (!status.ok()) {
        SLIMWIRE_TRY(resume(api, home));
        return status;
    }
    return taken;
}

Status MappedMemory::resume(const DeviceApi& api, uint64_t home) {
    return move(home, true,
                [&](uintptr_t address, Span* span) { return bring_back(api, address, span); });
}

const void* MappedMemory::away(const void* memory) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = span_of(memory);
    return found == spans_.end() || found->second.moving || found->second.away == nullptr
               ? nullptr
               : found->second.away.get() + (reinterpret_cast<uintptr_t>(memory) - found->first);
}

uint64_t MappedMemory::on_device(int device) const noexcept {
    const std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [address, span] : spans_) {
        bytes += span.device == device && (span.moving || span.away == nullptr) ? span.bytes : 0;
    }
    return bytes;
}

}  // namespace slimwire
