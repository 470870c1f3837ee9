// Device memory whose addresses stay while the memory is away: the host has the bytes meanwhile
// (ncclCommSuspend), and graphs that know the addresses stay valid. Of CUDA's functions for memory
// at reserved addresses, of which none waits for work. Memory belongs to a home, a number; all of a
// home goes and comes back together.
//
// Thread-safe but for a home, which one thread at a time allocates in, suspends and resumes. No
// lock is held across a CUDA call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "codecs/base/device.h"

namespace slimwire {

// cudaGetDriverEntryPoint of the runtime in use; until then there is no such memory.
using DriverEntry = decltype(&::cudaGetDriverEntryPoint);
void set_driver_entry(DriverEntry entry) noexcept;

// Those that reach the memory of `device`: NCCL lets ranks of one process write into each other's
// buffers.
[[nodiscard]] std::vector<int> peers_of(const DeviceApi& api, int device);

class MappedMemory {
  public:
    // On the current device, which is `device`; a suspend() that may drop bytes keeps the first
    // `kept`. cudaErrorNotSupported where there is none.
    cudaError_t allocate(const DeviceApi& api,
                         int device,
                         uint64_t home,
                         uint64_t bytes,
                         uint64_t kept,
                         void** memory);
    // Of memory that no work uses any more. False: it is not from here.
    bool free(const void* memory) noexcept;

    // Takes what the home has off its device, which is the current one, and puts it back at the
    // same addresses with the same bytes; with `drop`, what need not be kept is zero then, and the
    // host has none of it. No work uses it. Without success everything is as before.
    struct Taken {
        uint64_t moved = 0, dropped = 0;  // bytes
    };
    Result<Taken> suspend(const DeviceApi& api, uint64_t home, bool drop);
    Status resume(const DeviceApi& api, uint64_t home);
    // The bytes of memory that is away; null: it is not. Until the home resumes.
    [[nodiscard]] const void* away(const void* memory) const noexcept;
    // What is on the device now.
    [[nodiscard]] uint64_t on_device(int device) const noexcept;

  private:
    struct Part {
        uint64_t bytes = 0;
        uint64_t kept = 0;
    };
    struct Free {
        void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
    };
    // Memory that came at once, of which parts are allocated.
    struct Span {
        int device = 0;
        uint64_t home = 0;
        uint64_t bytes = 0;
        unsigned long long handle = 0;
        std::map<uint64_t, Part> used;                     // by offset
        std::unique_ptr<std::byte[], Free> away;           // the bytes while there is no memory
        std::vector<std::pair<uint64_t, uint64_t>> moved;  // offset and bytes; others are zero
        bool moving = false;                               // by suspend or resume
    };
    using Spans = std::map<uintptr_t, Span>;  // by address

    static std::optional<uint64_t> room(const Span& span, uint64_t bytes) noexcept;
    bool fit(int device, uint64_t home, const Part& part, void** memory);
    Spans::const_iterator span_of(const void* memory) const noexcept;
    static Status take_away(const DeviceApi& api, uintptr_t address, Span* span);
    static Status bring_back(const DeviceApi& api, uintptr_t address, Span* span);
    void drop(uintptr_t address, const Span& span) noexcept;
    template <class Move>
    Status move(uint64_t home, bool away, const Move& one);

    mutable std::mutex mutex_;
    Spans spans_;
};

}  // namespace slimwire
