// Emulated device memory and the host memory CUDA knows of. Any thread.
//
// All devices lie in one range of addresses, each backed by one sparse memory file that is mapped
// twice: at the address that clients get, and at that address plus a constant, which only the
// emulator uses (the alias). So finding the alias or the device of a pointer is arithmetic without
// a lock, allocation makes no system call, and strict mode only takes the access rights off the
// clients' mapping. Pages come with the first touch; freeing a large block gives them back.
//
// Behind the devices' addresses are as many that a program may reserve, of no device: a block of a
// device's file is mapped there, twice as well, and taken away again, as cuMemMap and cuMemUnmap
// do. Nothing has access to them in between.
#pragma once

#include <driver_types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

namespace slimwire::emulator {

class Pool;
struct Settings;

// What SLIMWIRE_EMU_STRICT fills fresh memory with: NaN in every floating type.
inline constexpr int kPoison = 0xff;
// Bytes of an allocation that strict mode fills: a large one stays memory that nobody touched.
constexpr size_t poisoned_bytes(size_t allocated) {
    return std::min(allocated, size_t{2} << 20);
}

// One allocation of device memory.
struct Allocation {
    uintptr_t base = 0;
    size_t bytes = 0;        // what was asked for
    size_t block_bytes = 0;  // what it takes
    int device = 0;
    std::shared_ptr<Pool> pool;  // set for stream-ordered allocations
    bool live = true;            // false while it waits in its pool for reuse, and of cuMemCreate
    uintptr_t mapped = 0;        // at reserved addresses: what of cuMemCreate is there
};

class DeviceMemory {
  public:
    explicit DeviceMemory(const Settings& settings);

    // Memory on `device`, aligned to 512 bytes (its size is rounded up to that too). Throws
    // std::bad_alloc when the device is full or the machine refuses the mapping. `bytes` > 0.
    void* allocate(int device, size_t bytes, std::shared_ptr<Pool> pool = nullptr);
    // Frees the allocation that starts at `pointer`; false when none does.
    bool release(const void* pointer);
    // Moves the allocation that starts at `pointer` in or out of use within its pool, with a new
    // client size.
    void set_live(const void* pointer, bool live, size_t bytes);

    // The live allocation that contains `pointer`.
    [[nodiscard]] std::optional<Allocation> find(const void* pointer) const;
    // Frees all allocations of a device, those waiting in pools included.
    void reset(int device);

    // --- Reserved addresses; false, or 0, where CUDA refuses the arguments
    static constexpr size_t kGranuleBytes = size_t{2} << 20;  // of all sizes, and the alignment
    // Addresses without memory; throws std::bad_alloc when there are none left.
    uintptr_t reserve_addresses(size_t bytes);
    bool free_addresses(uintptr_t address, size_t bytes);
    // Memory of the device without an address; throws std::bad_alloc when the device is full. It is
    // there until it is released and unmapped.
    uintptr_t create(int device, size_t bytes);
    bool release_created(uintptr_t handle);
    bool map(uintptr_t address, size_t bytes, uintptr_t handle);
    bool unmap(uintptr_t address, size_t bytes);
    // Until then nothing has access to what is mapped.
    bool set_access(uintptr_t address, size_t bytes, bool access);

    // True for every address of any device, allocated or not.
    [[nodiscard]] bool contains(const void* pointer) const {
        return reinterpret_cast<uintptr_t>(pointer) - base_.load(std::memory_order_acquire) <
               span_bytes_;
    }
    // The emulator's own mapping of a device address; other pointers come back unchanged.
    [[nodiscard]] void* alias(const void* pointer) const {
        const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
        const uintptr_t base = base_.load(std::memory_order_acquire);
        return reinterpret_cast<void*>(address - base < span_bytes_ ? address + alias_offset_
                                                                    : address);
    }

    // Fills the beginning of fresh memory that starts at `pointer`, no reserved address. Through
    // the file: pages that nobody touches then need no mapping, whose making took most of the time.
    void poison(const void* pointer, size_t allocated) const;

    [[nodiscard]] size_t device_bytes() const { return device_bytes_; }
    [[nodiscard]] size_t used_bytes(int device) const;

  private:
    // A part of the range.
    struct Arena {
        int file = -1;
        size_t used_bytes = 0;
        std::map<uintptr_t, size_t> free;  // bytes by start; no two touch

        // Takes `bytes` of the smallest free block with room; throws std::bad_alloc without one.
        uintptr_t take(size_t bytes, size_t alignment);
        void give_back(uintptr_t address, size_t bytes);
    };

    struct Created {
        bool released = false;
        int maps = 0;
    };
    using Allocations = std::map<uintptr_t, Allocation>;

    void reserve();
    void open_arena(int device);
    void* allocate_locked(int device, size_t bytes, size_t alignment, std::shared_ptr<Pool> pool);
    void release_locked(Allocations::iterator found);
    void unmap_locked(Allocations::iterator found);
    void drop_if_unused(uintptr_t handle);
    Allocations::iterator mapping_at(uintptr_t address, size_t bytes);
    [[nodiscard]] uintptr_t arena_base(int device) const {
        return base_.load(std::memory_order_relaxed) + static_cast<size_t>(device) * device_bytes_;
    }

    const bool strict_;
    const size_t device_bytes_;
    const size_t devices_bytes_;
    const size_t span_bytes_;  // the same for addresses that programs reserve is behind that
    // The range's start; until the range exists a value that no address reaches.
    std::atomic<uintptr_t> base_{UINTPTR_MAX};
    uintptr_t alias_offset_ = 0;  // written before base_ is published

    mutable std::shared_mutex mutex_;  // guards everything below
    std::vector<Arena> arenas_;
    Allocations allocations_;
    Arena addresses_;                       // that nobody has reserved
    std::map<uintptr_t, size_t> reserved_;  // bytes by start
    std::map<uintptr_t, Created> created_;  // by handle, where the memory lies in its device
};

// One range of host memory that CUDA allocated or registered.
struct HostRange {
    uintptr_t base = 0;
    size_t bytes = 0;
    bool registered = false;  // by cudaHostRegister: the client owns the memory
    unsigned int flags = 0;
    int device = 0;
};

class HostMemory {
  public:
    // Page-aligned memory; throws std::bad_alloc.
    void* allocate(size_t bytes, unsigned int flags, int device);
    cudaError_t add_registered(void* pointer, size_t bytes, unsigned int flags, int device);
    // Frees the allocation that starts at `pointer`; false when none does.
    bool release(void* pointer);
    cudaError_t remove_registered(void* pointer);
    [[nodiscard]] std::optional<HostRange> find(const void* pointer) const;

  private:
    mutable std::shared_mutex mutex_;
    std::map<uintptr_t, HostRange> ranges_;
};

}  // namespace slimwire::emulator
