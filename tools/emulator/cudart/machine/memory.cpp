#include "tools/emulator/cudart/machine/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "tools/emulator/cudart/machine/settings.h"

namespace slimwire::emulator {
namespace {

constexpr size_t kAlignmentBytes = 512;
// Freed blocks of this size give their pages back; smaller ones keep them for the next allocation.
constexpr size_t kReturnPagesBytes = size_t{1} << 20;
constexpr size_t kPageBytes = 4096;

size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

uintptr_t address_of(const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer);
}

}  // namespace

uintptr_t DeviceMemory::Arena::take(size_t bytes, size_t alignment) {
    auto best = free.end();
    for (auto block = free.begin(); block != free.end(); ++block) {
        const uintptr_t address = round_up(block->first, alignment);
        if (address + bytes <= block->first + block->second &&
            (best == free.end() || block->second < best->second)) {
            best = block;
        }
    }
    if (best == free.end()) {
        throw std::bad_alloc();
    }
    const uintptr_t begin = best->first, end = begin + best->second;
    const uintptr_t address = round_up(begin, alignment);
    free.erase(best);
    if (address > begin) {
        free.emplace(begin, address - begin);
    }
    if (end > address + bytes) {
        free.emplace(address + bytes, end - address - bytes);
    }
    return address;
}

void DeviceMemory::Arena::give_back(uintptr_t address, size_t bytes) {
    const auto block = free.emplace(address, bytes).first;
    if (const auto next = std::next(block); next != free.end() && next->first == address + bytes) {
        block->second += next->second;
        free.erase(next);
    }
    if (block != free.begin()) {
        const auto previous = std::prev(block);
        if (previous->first + previous->second == address) {
            previous->second += block->second;
            free.erase(block);
        }
    }
}

DeviceMemory::DeviceMemory(const Settings& settings)
    : strict_(settings.strict),
      device_bytes_(settings.device_memory_bytes),
      devices_bytes_(settings.device_memory_bytes * static_cast<size_t>(settings.device_count)),
      span_bytes_(2 * round_up(devices_bytes_, kGranuleBytes)),
      arenas_(static_cast<size_t>(settings.device_count)) {}

void DeviceMemory::reserve() {
    // One reservation holds both ranges: clients' addresses, then the alias.
    void* range = mmap(nullptr, 2 * span_bytes_, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        say("cannot reserve %zu GiB of addresses for device memory: %s (is the address space "
            "limited?)",
            (2 * span_bytes_) >> 30, std::strerror(errno));
        throw std::bad_alloc();
    }
    alias_offset_ = span_bytes_;
    const uintptr_t free = round_up(address_of(range) + devices_bytes_, kGranuleBytes);
    addresses_.give_back(free, address_of(range) + span_bytes_ - free);
    base_.store(address_of(range), std::memory_order_release);
}

void DeviceMemory::open_arena(int device) {
    if (base_.load(std::memory_order_relaxed) == UINTPTR_MAX) {
        reserve();
    }
    Arena& arena = arenas_[static_cast<size_t>(device)];
    const int file = memfd_create("slimwire-device-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(device_bytes_)) != 0) {
        say("cannot make a memory file for device %d: %s", device, std::strerror(errno));
        if (file >= 0) {
            close(file);
        }
        throw std::bad_alloc();
    }
    const uintptr_t base = arena_base(device);
    const int rights = PROT_READ | PROT_WRITE;
    for (const auto& [address, protection] :
         {std::pair{base, strict_ ? PROT_NONE : rights}, std::pair{base + alias_offset_, rights}}) {
        if (mmap(reinterpret_cast<void*>(address), device_bytes_, protection,
                 MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) {
            say("cannot map %zu GiB of memory for device %d: %s", device_bytes_ >> 30, device,
                std::strerror(errno));
            close(file);
            throw std::bad_alloc();
        }
        // Core dumps of a program under test stay small.
        (void)madvise(reinterpret_cast<void*>(address), device_bytes_, MADV_DONTDUMP);
    }
    arena.file = file;
    arena.give_back(base, device_bytes_);
}

void* DeviceMemory::allocate(int device, size_t bytes, std::shared_ptr<Pool> pool) {
    const std::unique_lock lock(mutex_);
    return allocate_locked(device, bytes, kAlignmentBytes, std::move(pool));
}

void* DeviceMemory::allocate_locked(int device,
                                    size_t bytes,
                                    size_t alignment,
                                    std::shared_ptr<Pool> pool) {
    if (bytes > device_bytes_) {
        throw std::bad_alloc();
    }
    const size_t block_bytes = round_up(bytes, kAlignmentBytes);
    Arena& arena = arenas_[static_cast<size_t>(device)];
    if (arena.file < 0) {
        open_arena(device);
    }
    const uintptr_t address = arena.take(block_bytes, alignment);
    arena.used_bytes += block_bytes;
    allocations_.emplace(address,
                         Allocation{address, bytes, block_bytes, device, std::move(pool), true, 0});
    return reinterpret_cast<void*>(address);
}

bool DeviceMemory::release(const void* pointer) {
    std::shared_ptr<Pool> pool;  // goes after the lock
    const std::unique_lock lock(mutex_);
    const auto found = allocations_.find(address_of(pointer));
    if (found == allocations_.end() || found->second.mapped != 0) {
        return false;
    }
    pool = found->second.pool;
    release_locked(found);
    return true;
}

void DeviceMemory::release_locked(Allocations::iterator found) {
    const Allocation freed = std::move(found->second);
    allocations_.erase(found);
    Arena& arena = arenas_[static_cast<size_t>(freed.device)];
    if (freed.block_bytes >= kReturnPagesBytes) {
        const uintptr_t start = round_up(freed.base, kPageBytes);
        const uintptr_t end = (freed.base + freed.block_bytes) / kPageBytes * kPageBytes;
        (void)fallocate(arena.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(start - arena_base(freed.device)),
                        static_cast<off_t>(end - start));
    }
    arena.used_bytes -= freed.block_bytes;
    arena.give_back(freed.base, freed.block_bytes);
}

void DeviceMemory::reset(int device) {
    std::vector<std::shared_ptr<Pool>> pools;  // go after the lock
    const std::unique_lock lock(mutex_);
    for (const bool mapped : {true, false}) {
        for (auto next = allocations_.begin(); next != allocations_.end();) {
            const auto found = next++;
            if (found->second.device == device && (found->second.mapped != 0) == mapped) {
                pools.push_back(found->second.pool);
                created_.erase(mapped ? 0 : found->first);
                mapped ? unmap_locked(found) : release_locked(found);
            }
        }
    }
}

void DeviceMemory::set_live(const void* pointer, bool live, size_t bytes) {
    const std::unique_lock lock(mutex_);
    const auto found = allocations_.find(address_of(pointer));
    if (found != allocations_.end()) {
        found->second.live = live;
        found->second.bytes = bytes;
    }
}

std::optional<Allocation> DeviceMemory::find(const void* pointer) const {
    if (!contains(pointer)) {
        return std::nullopt;
    }
    const uintptr_t address = address_of(pointer);
    const std::shared_lock lock(mutex_);
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) {
        return std::nullopt;
    }
    const Allocation& allocation = std::prev(after)->second;
    if (!allocation.live || address - allocation.base >= allocation.bytes) {
        return std::nullopt;
    }
    return allocation;
}

size_t DeviceMemory::used_bytes(int device) const {
    const std::shared_lock lock(mutex_);
    return arenas_[static_cast<size_t>(device)].used_bytes;
}

void DeviceMemory::poison(const void* pointer, size_t allocated) const {
    static constexpr auto kFilled = [] {
        std::array<unsigned char, size_t{64} << 10> filled{};
        filled.fill(kPoison);
        return filled;
    }();
    const size_t place = address_of(pointer) - base_.load(std::memory_order_acquire);
    const int file = [&] {
        const std::shared_lock lock(mutex_);
        return arenas_[place / device_bytes_].file;
    }();
    const size_t begin = place % device_bytes_, end = begin + poisoned_bytes(allocated);
    for (size_t at = begin; at < end; at += kFilled.size()) {
        const size_t part = std::min(kFilled.size(), end - at);
        if (pwrite(file, kFilled.data(), part, static_cast<off_t>(at)) !=
            static_cast<ssize_t>(part)) {
            say("cannot fill fresh device memory: %s", std::strerror(errno));
            std::abort();
        }
    }
}

uintptr_t DeviceMemory::reserve_addresses(size_t bytes) {
    if (bytes == 0 || bytes % kGranuleBytes != 0) {
        return 0;
    }
    const std::unique_lock lock(mutex_);
    if (base_.load(std::memory_order_relaxed) == UINTPTR_MAX) {
        reserve();
    }
    const uintptr_t address = addresses_.take(bytes, kGranuleBytes);
    reserved_.emplace(address, bytes);
    return address;
}

bool DeviceMemory::free_addresses(uintptr_t address, size_t bytes) {
    const std::unique_lock lock(mutex_);
    const auto found = reserved_.find(address);
    const auto mapped = allocations_.lower_bound(address);
    if (found == reserved_.end() || found->second != bytes ||
        (mapped != allocations_.end() && mapped->first < address + bytes)) {
        return false;
    }
    reserved_.erase(found);
    addresses_.give_back(address, bytes);
    return true;
}

uintptr_t DeviceMemory::create(int device, size_t bytes) {
    if (bytes == 0 || bytes % kGranuleBytes != 0) {
        return 0;
    }
    const std::unique_lock lock(mutex_);
    const uintptr_t handle = address_of(allocate_locked(device, bytes, kPageBytes, nullptr));
    allocations_.find(handle)->second.live = false;
    created_[handle] = {};
    return handle;
}

void DeviceMemory::drop_if_unused(uintptr_t handle) {
    const auto found = created_.find(handle);
    if (found != created_.end() && found->second.released && found->second.maps == 0) {
        created_.erase(found);
        release_locked(allocations_.find(handle));
    }
}

bool DeviceMemory::release_created(uintptr_t handle) {
    const std::unique_lock lock(mutex_);
    const auto found = created_.find(handle);
    if (found == created_.end() || found->second.released) {
        return false;
    }
    found->second.released = true;
    drop_if_unused(handle);
    return true;
}

bool DeviceMemory::map(uintptr_t address, size_t bytes, uintptr_t handle) {
    const std::unique_lock lock(mutex_);
    const auto created = created_.find(handle);
    auto range = reserved_.upper_bound(address);
    const auto next = allocations_.lower_bound(address);
    if (created == created_.end() || created->second.released || range == reserved_.begin() ||
        (next != allocations_.end() && next->first < address + bytes)) {
        return false;
    }
    const Allocation& memory = allocations_.find(handle)->second;
    range = std::prev(range);
    if (memory.bytes != bytes || address + bytes > range->first + range->second) {
        return false;
    }
    for (const uintptr_t at : {address, address + alias_offset_}) {
        if (mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
                 MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                 arenas_[static_cast<size_t>(memory.device)].file,
                 static_cast<off_t>(handle - arena_base(memory.device))) == MAP_FAILED) {
            throw std::bad_alloc();
        }
        (void)madvise(reinterpret_cast<void*>(at), bytes, MADV_DONTDUMP);
    }
    ++created->second.maps;
    allocations_.emplace(address,
                         Allocation{address, bytes, bytes, memory.device, nullptr, false, handle});
    return true;
}

DeviceMemory::Allocations::iterator DeviceMemory::mapping_at(uintptr_t address, size_t bytes) {
    const auto found = allocations_.find(address);
    return found != allocations_.end() && found->second.mapped != 0 && found->second.bytes == bytes
               ? found
               : allocations_.end();
}

void DeviceMemory::unmap_locked(Allocations::iterator found) {
    for (const uintptr_t at : {found->first, found->first + alias_offset_}) {
        (void)mmap(reinterpret_cast<void*>(at), found->second.bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    }
    const uintptr_t handle = found->second.mapped;
    allocations_.erase(found);
    if (const auto created = created_.find(handle); created != created_.end()) {
        --created->second.maps;
        drop_if_unused(handle);
    }
}

bool DeviceMemory::unmap(uintptr_t address, size_t bytes) {
    const std::unique_lock lock(mutex_);
    const auto found = mapping_at(address, bytes);
    if (found == allocations_.end()) {
        return false;
    }
    unmap_locked(found);
    return true;
}

bool DeviceMemory::set_access(uintptr_t address, size_t bytes, bool access) {
    const std::unique_lock lock(mutex_);
    const auto found = mapping_at(address, bytes);
    if (found == allocations_.end()) {
        return false;
    }
    const int rights = access ? PROT_READ | PROT_WRITE : PROT_NONE;
    (void)mprotect(reinterpret_cast<void*>(address), bytes, strict_ ? PROT_NONE : rights);
    (void)mprotect(reinterpret_cast<void*>(address + alias_offset_), bytes, rights);
    found->second.live = access;
    return true;
}

void* HostMemory::allocate(size_t bytes, unsigned int flags, int device) {
    // From the ordinary heap, so that a sanitizer sees what runs over its end.
    void* pointer = std::aligned_alloc(kPageBytes, round_up(bytes, kPageBytes));
    if (pointer == nullptr) {
        throw std::bad_alloc();
    }
    const std::unique_lock lock(mutex_);
    ranges_[address_of(pointer)] = HostRange{address_of(pointer), bytes, false, flags, device};
    return pointer;
}

cudaError_t HostMemory::add_registered(void* pointer,
                                       size_t bytes,
                                       unsigned int flags,
                                       int device) {
    const uintptr_t base = address_of(pointer);
    const std::unique_lock lock(mutex_);
    const auto next = ranges_.lower_bound(base);
    if (next != ranges_.end() && next->first - base < bytes) {
        return cudaErrorHostMemoryAlreadyRegistered;
    }
    if (next != ranges_.begin()) {
        const HostRange& previous = std::prev(next)->second;
        if (base - previous.base < previous.bytes) {
            return cudaErrorHostMemoryAlreadyRegistered;
        }
    }
    ranges_[base] = HostRange{base, bytes, true, flags, device};
    return cudaSuccess;
}

bool HostMemory::release(void* pointer) {
    {
        const std::unique_lock lock(mutex_);
        const auto found = ranges_.find(address_of(pointer));
        if (found == ranges_.end() || found->second.registered) {
            return false;
        }
        ranges_.erase(found);
    }
    std::free(pointer);
    return true;
}

cudaError_t HostMemory::remove_registered(void* pointer) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(address_of(pointer));
    if (found == ranges_.end() || !found->second.registered) {
        return cudaErrorHostMemoryNotRegistered;
    }
    ranges_.erase(found);
    return cudaSuccess;
}

std::optional<HostRange> HostMemory::find(const void* pointer) const {
    const uintptr_t address = address_of(pointer);
    const std::shared_lock lock(mutex_);
    const auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) {
        return std::nullopt;
    }
    const HostRange& range = std::prev(after)->second;
    return address - range.base < range.bytes ? std::optional(range) : std::nullopt;
}

}  // namespace slimwire::emulator
