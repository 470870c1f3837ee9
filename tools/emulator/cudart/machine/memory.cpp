#include "tools/emulator/cudart/machine/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
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

void DeviceMemory::Arena::add_free(uintptr_t address, size_t bytes) {
    auto next = free_by_address.lower_bound(address);
    if (next != free_by_address.end() && next->first == address + bytes) {
        bytes += next->second;
        const auto merged = next++;
        remove_free(merged);
    }
    if (next != free_by_address.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == address) {
            address = previous->first;
            bytes += previous->second;
            remove_free(previous);
        }
    }
    free_by_address.emplace(address, bytes);
    free_by_size.emplace(bytes, address);
}

void DeviceMemory::Arena::remove_free(std::map<uintptr_t, size_t>::iterator block) {
    free_by_size.erase({block->second, block->first});
    free_by_address.erase(block);
}

DeviceMemory::DeviceMemory(const Settings& settings)
    : strict_(settings.strict),
      device_bytes_(settings.device_memory_bytes),
      span_bytes_(settings.device_memory_bytes * static_cast<size_t>(settings.device_count)),
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
    arena.add_free(base, device_bytes_);
}

void* DeviceMemory::allocate(int device, size_t bytes, std::shared_ptr<Pool> pool) {
    if (bytes > device_bytes_) {
        throw std::bad_alloc();
    }
    const size_t block_bytes = round_up(bytes, kAlignmentBytes);
    const std::unique_lock lock(mutex_);
    Arena& arena = arenas_[static_cast<size_t>(device)];
    if (arena.file < 0) {
        open_arena(device);
    }
    const auto fit = arena.free_by_size.lower_bound({block_bytes, 0});
    if (fit == arena.free_by_size.end()) {
        throw std::bad_alloc();
    }
    const auto [free_bytes, address] = *fit;
    arena.remove_free(arena.free_by_address.find(address));
    if (free_bytes > block_bytes) {
        arena.add_free(address + block_bytes, free_bytes - block_bytes);
    }
    arena.used_bytes += block_bytes;
    allocations_.emplace(address,
                         Allocation{address, bytes, block_bytes, device, std::move(pool), true});
    return reinterpret_cast<void*>(address);
}

bool DeviceMemory::release(const void* pointer) {
    Allocation freed;  // its pool reference goes after the lock
    const std::unique_lock lock(mutex_);
    const auto found = allocations_.find(address_of(pointer));
    if (found == allocations_.end()) {
        return false;
    }
    freed = std::move(found->second);
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
    arena.add_free(freed.base, freed.block_bytes);
    return true;
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

std::vector<void*> DeviceMemory::all(int device) const {
    const std::shared_lock lock(mutex_);
    std::vector<void*> starts;
    for (const auto& [address, allocation] : allocations_) {
        if (allocation.device == device) {
            starts.push_back(reinterpret_cast<void*>(address));
        }
    }
    return starts;
}

size_t DeviceMemory::used_bytes(int device) const {
    const std::shared_lock lock(mutex_);
    return arenas_[static_cast<size_t>(device)].used_bytes;
}

void* HostMemory::allocate(size_t bytes, cudaMemoryType type, unsigned int flags, int device) {
    // From the ordinary heap, so that a sanitizer sees what runs over its end.
    void* pointer = std::aligned_alloc(kPageBytes, round_up(bytes, kPageBytes));
    if (pointer == nullptr) {
        throw std::bad_alloc();
    }
    const std::unique_lock lock(mutex_);
    ranges_[address_of(pointer)] =
        HostRange{address_of(pointer), bytes, type, false, flags, device};
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
    ranges_[base] = HostRange{base, bytes, cudaMemoryTypeHost, true, flags, device};
    return cudaSuccess;
}

bool HostMemory::release(void* pointer, cudaMemoryType type) {
    {
        const std::unique_lock lock(mutex_);
        const auto found = ranges_.find(address_of(pointer));
        if (found == ranges_.end() || found->second.registered || found->second.type != type) {
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
