#include "collectives/communicator/device_memory.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"

namespace slimwire {
namespace {

constexpr size_t kPinnedAlignment = 64;

}  // namespace

DeviceMemory::OfDevice& DeviceMemory::of_device(int device) {
    const std::lock_guard lock(mutex_);
    return devices_[device];
}

// One without a handle where the device has none; nothing where it has none now.
std::optional<DeviceMemory::Pool> DeviceMemory::make_pool(const DeviceApi& api,
                                                          int device) noexcept {
    int supported = 0;
    if (!tolerate(api,
                  api.device_get_attribute(&supported, cudaDevAttrMemoryPoolsSupported, device)) ||
        supported == 0) {
        return Pool();
    }
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.handleTypes = cudaMemHandleTypeNone;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    Pool made;
    if (!tolerate(api, api.mem_pool_create(&made.handle, &props))) {
        return std::nullopt;
    }
    int depends = 0;
    if (!tolerate(api, api.mem_pool_set_attribute(
                           made.handle, cudaMemPoolReuseAllowInternalDependencies, &depends)) ||
        !tolerate(api, api.stream_create_with_flags(&made.stream, cudaStreamNonBlocking))) {
        tolerate(api, api.mem_pool_destroy(made.handle));
        return std::nullopt;
    }
    for (const int peer : peers_of(api, device)) {  // which buffers of a pool refuse otherwise
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = peer;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        tolerate(api, api.mem_pool_set_access(made.handle, &access, 1));
    }
    return made;
}

// On the current device.
DeviceMemory::Pool DeviceMemory::pool_of(const DeviceApi& api, int device, OfDevice* of) noexcept {
    {
        const std::lock_guard lock(of->mutex);
        if (of->pool.has_value()) {
            return *of->pool;
        }
    }
    const std::optional<Pool> made = make_pool(api, device);
    if (!made.has_value()) {
        return {};  // the next one who asks tries again
    }
    Pool kept;
    {
        const std::lock_guard lock(of->mutex);
        kept = of->pool.has_value() ? *of->pool : of->pool.emplace(*made);
    }
    if (kept.handle != made->handle && made->handle != nullptr) {
        tolerate(api, api.stream_destroy(made->stream));
        tolerate(api, api.mem_pool_destroy(made->handle));
    }
    return kept;
}

void DeviceMemory::free_in(const DeviceApi& api, const Pool& pool, void* memory) noexcept {
    if (mapped_.free(memory)) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        if (auto of_host = of_host_.extract(memory); !of_host.empty()) {
            unused_.emplace(of_host.mapped(), memory);
            return;
        }
    }
    tolerate(api, pool.handle != nullptr ? api.free_async(memory, pool.stream) : api.free(memory));
}

void DeviceMemory::free_all(const DeviceApi& api, const Pool& pool, const Retired& one) noexcept {
    for (void* memory : one.memory) {
        if (memory != nullptr) {
            free_in(api, pool, memory);
        }
    }
    unpin(one.pinned);
}

// Entries are out of the list while they are asked for, so no thread waits for another's calls.
void DeviceMemory::collect_on(const DeviceApi& api, int device, OfDevice* of) noexcept {
    std::vector<Retired> retired;
    {
        const std::lock_guard lock(of->mutex);
        retired.swap(of->retired);
    }
    if (retired.empty()) {
        return;
    }
    const DeviceScope scope(api, device);
    const Pool pool = pool_of(api, device, of);
    std::erase_if(retired, [&](const Retired& one) {
        if (!tolerate(api, api.event_query(one.end))) {
            return false;
        }
        free_all(api, pool, one);
        tolerate(api, api.event_destroy(one.end));
        return true;
    });
    const std::lock_guard lock(of->mutex);
    std::move(retired.begin(), retired.end(), std::back_inserter(of->retired));
}

cudaError_t DeviceMemory::allocate(
    const DeviceApi& api, int device, uint64_t bytes, void** memory, uint64_t home, uint64_t kept) {
    OfDevice& of = of_device(device);
    collect_on(api, device, &of);
    const DeviceScope scope(api, device);
    if (home != 0) {
        const cudaError_t error = mapped_.allocate(api, device, home, bytes, kept, memory);
        if (error != cudaErrorNotSupported) {
            return error;
        }
    }
    for (bool again = false;; again = true) {
        const Pool pool = pool_of(api, device, &of);
        if (pool.handle == nullptr) {
            return api.malloc(memory, bytes);
        }
        cudaError_t error = api.malloc_from_pool_async(memory, bytes, pool.handle, pool.stream);
        if (error == cudaSuccess) {
            error = api.stream_synchronize(pool.stream);
            if (error != cudaSuccess) {
                tolerate(api, api.free_async(*memory, pool.stream));
            }
            return error;
        }
        const bool gone = error == cudaErrorInvalidValue ||
                          error == cudaErrorInvalidResourceHandle ||
                          error == cudaErrorContextIsDestroyed;
        if (!gone || again) {
            return error;
        }
        // The program has reset the device since, and the pool with it.
        (void)api.get_last_error();
        const std::lock_guard lock(of.mutex);
        of.pool.reset();
    }
}

cudaError_t DeviceMemory::allocate_anyhow(
    const DeviceApi& api, int device, uint64_t bytes, void** memory, uint64_t home, uint64_t kept) {
    cudaError_t error = allocate(api, device, bytes, memory, home, kept);
    if (error == cudaErrorMemoryAllocation) {
        tolerate(api, error);
        collect(api);  // what pools keep may be enough
        error = allocate(api, device, bytes, memory, home, kept);
    }
    if (error != cudaErrorMemoryAllocation) {
        return error;
    }
    tolerate(api, error);
    const DeviceScope scope(api, device);
    const Pinned pinned = pin(api, bytes);
    if (pinned.memory == nullptr) {
        return error;
    }
    log_once(LogLevel::kWarn, "memory of the host",
             "device " + std::to_string(device) + " has no memory for " + std::to_string(bytes) +
                 " bytes that other ranks count on; the host's is slower");
    const std::lock_guard lock(mutex_);
    of_host_.emplace(pinned.memory, pinned.bytes);
    *memory = pinned.memory;
    return cudaSuccess;
}

void DeviceMemory::free(const DeviceApi& api, int device, void* memory) noexcept {
    if (memory != nullptr) {
        const DeviceScope scope(api, device);
        free_in(api, pool_of(api, device, &of_device(device)), memory);
    }
}

void DeviceMemory::retire(const DeviceApi& api,
                          int device,
                          cudaEvent_t end,
                          std::vector<void*> memory,
                          std::vector<Pinned> pinned,
                          std::vector<std::shared_ptr<void>> owners) noexcept {
    OfDevice& of = of_device(device);
    const Retired one{end, std::move(memory), std::move(pinned), std::move(owners)};
    if (end != nullptr) {
        const std::lock_guard lock(of.mutex);
        of.retired.push_back(one);
    } else {
        const DeviceScope scope(api, device);
        free_all(api, pool_of(api, device, &of), one);
    }
    collect_on(api, device, &of);
}

void DeviceMemory::keep(std::vector<std::shared_ptr<void>> owners) noexcept {
    const std::lock_guard lock(mutex_);
    std::move(owners.begin(), owners.end(), std::back_inserter(kept_));
}

void DeviceMemory::collect(const DeviceApi& api) noexcept {
    std::vector<std::pair<int, OfDevice*>> devices;
    {
        const std::lock_guard lock(mutex_);
        for (auto& [device, of] : devices_) {
            devices.emplace_back(device, &of);
        }
    }
    for (const auto& [device, of] : devices) {
        collect_on(api, device, of);
        const DeviceScope scope(api, device);
        if (const Pool pool = pool_of(api, device, of); pool.handle != nullptr) {
            tolerate(api, api.mem_pool_trim_to(pool.handle, 0));
        }
    }
}

std::optional<uint64_t> DeviceMemory::reserved(const DeviceApi& api, int device) noexcept {
    const DeviceScope scope(api, device);
    const Pool pool = pool_of(api, device, &of_device(device));
    uint64_t bytes = 0;
    if (pool.handle == nullptr ||
        !tolerate(api, api.mem_pool_get_attribute(pool.handle, cudaMemPoolAttrReservedMemCurrent,
                                                  &bytes))) {
        return std::nullopt;
    }
    return bytes + mapped_.on_device(device);
}

Pinned DeviceMemory::pin(const DeviceApi& api, size_t bytes, bool may_wait) noexcept {
    bytes = (bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment;
    Pinned piece;
    while (piece.memory == nullptr) {
        {
            const std::lock_guard lock(mutex_);
            const auto least = unused_.lower_bound(bytes);
            if (least == unused_.end()) {
                break;
            }
            piece = {least->second, least->first};
            unused_.erase(least);
        }
        // A program that reset a device has lost what was pinned there.
        cudaPointerAttributes attributes{};
        if (!tolerate(api, api.pointer_get_attributes(&attributes, piece.memory)) ||
            attributes.type != cudaMemoryTypeHost) {
            piece = {};
        }
    }
    if (piece.memory == nullptr) {
        piece.bytes = std::max(bytes, kPinnedPiece);
        if (!may_wait ||
            !tolerate(api, api.host_alloc(&piece.memory, piece.bytes, cudaHostAllocPortable))) {
            return {};
        }
    }
    if (piece.bytes > bytes) {
        unpin({{static_cast<char*>(piece.memory) + bytes, piece.bytes - bytes}});
    }
    return {piece.memory, bytes};
}

void DeviceMemory::unpin(const std::vector<Pinned>& pinned) noexcept {
    const std::lock_guard lock(mutex_);
    for (const Pinned& one : pinned) {
        unused_.emplace(one.bytes, one.memory);
    }
}

void Retirement::after(cudaEvent_t end) noexcept {
    if (end == nullptr || lost_ || tolerate(api_, api_.event_query(end))) {
        return;
    }
    lost_ = (stream_ == nullptr &&
             !tolerate(api_, api_.stream_create_with_flags(&stream_, cudaStreamNonBlocking))) ||
            !tolerate(api_, api_.stream_wait_event(stream_, end, 0));
}

void Retirement::add(void* memory) {
    if (memory != nullptr) {
        memory_.push_back(memory);
    }
}

void Retirement::add(const Pinned& pinned) {
    if (pinned.memory != nullptr) {
        pinned_.push_back(pinned);
    }
}

Retirement::~Retirement() {
    cudaEvent_t end = nullptr;
    if (stream_ != nullptr) {
        lost_ = lost_ ||
                !tolerate(api_, api_.event_create_with_flags(&end, cudaEventDisableTiming)) ||
                !tolerate(api_, api_.event_record(end, stream_));
        tolerate(api_, api_.stream_destroy(stream_));
    }
    if (!lost_) {
        owner_->retire(api_, device_, end, std::move(memory_), std::move(pinned_),
                       std::move(owners_));
    } else {
        owner_->keep(std::move(owners_));
        if (end != nullptr) {
            tolerate(api_, api_.event_destroy(end));
        }
    }
}

bool MemoryBudget::reserve(int device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    uint64_t& held = held_[device];
    if (limit_ != 0 && (bytes > limit_ || held > limit_ - bytes)) {
        return false;
    }
    held += bytes;
    return true;
}

void MemoryBudget::take(int device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    held_[device] += bytes;
}

void MemoryBudget::give_back(int device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    uint64_t& held = held_[device];
    held -= std::min(held, bytes);
}

uint64_t MemoryBudget::take_scratch(int device, uint64_t wanted, uint64_t total) {
    constexpr uint64_t kOfDevice = 20, kOfLimit = 2, kGranule = 256;
    const std::lock_guard lock(mutex_);
    uint64_t& scratch = scratch_[device];
    const uint64_t most =
        limit_ != 0 ? std::min(total / kOfDevice, limit_ / kOfLimit) : total / kOfDevice;
    // Half of what is left, so that later communicators have some, too.
    const uint64_t left = (most - std::min(most, scratch)) / 2;
    const uint64_t taken = std::min(wanted, left) / kGranule * kGranule;
    scratch += taken;
    held_[device] += taken;
    return taken;
}

void MemoryBudget::give_back_scratch(int device, uint64_t bytes) {
    give_back(device, bytes);
    const std::lock_guard lock(mutex_);
    uint64_t& scratch = scratch_[device];
    scratch -= std::min(scratch, bytes);
}

uint64_t MemoryBudget::held(int device) const {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(device);
    return found == held_.end() ? 0 : found->second;
}

}  // namespace slimwire
