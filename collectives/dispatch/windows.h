// Symmetric windows: memory of all ranks that NCCL's own kernels and copy engines reach directly
// (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC). Collectives on them stay native. All ranks
// register a window, and call with buffers at the same place in it, or with none of them, as NCCL's
// manual asks: so buffers decide here, and alike on all ranks.
//
// One-sided calls, which put into them without a call of the peer, are counted.
//
// Kept for one communicator: one thread calls, others (watchdogs) may ask for its state meanwhile.
#pragma once

#include <nccl_later.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "collectives/call/call.h"

namespace slimwire {

class Runtime;
struct Session;

struct SymmetricWindow {
    const std::byte* begin = nullptr;
    size_t bytes = 0;
    ncclWindow_t handle = nullptr;
    // Of the program: where NCCL puts the handle once it is made; null: it was.
    const ncclWindow_t* where = nullptr;
};

class SymmetricWindows {
  public:
    void add(const SymmetricWindow& one);
    void remove(ncclWindow_t handle) noexcept;
    // The communicator has made all that it was told to: takes the handles. Null are those of NCCLs
    // and machines that have no such windows.
    void ready() noexcept;
    [[nodiscard]] bool empty() const noexcept { return !any_.load(std::memory_order_acquire); }
    [[nodiscard]] bool hold(const void* buffer) const noexcept;

  private:
    mutable std::mutex mutex_;
    std::vector<SymmetricWindow> all_;
    std::atomic<bool> any_{false};  // all_ holds one
};

// After the real ncclCommWindowRegister, which returned `result`. What the thread's group registers
// counts from its end on, what NCCL makes in the background from windows_ready() on.
void window_registered(Runtime& runtime,
                       ncclComm_t comm,
                       const SymmetricWindow& window,
                       int flags,
                       ncclResult_t result);
// Before the real ncclCommWindowDeregister.
void window_deregistered(Runtime& runtime, ncclComm_t comm, ncclWindow_t handle) noexcept;
// NCCL said that the communicator has made all that it was told to.
void windows_ready(Runtime& runtime, ncclComm_t comm) noexcept;

// Before the real one-sided call, `operation` of `count` elements.
void count_one_sided(Runtime& runtime,
                     ncclComm_t comm,
                     const char* operation,
                     ncclDataType_t type,
                     uint64_t count) noexcept;

// Whether the collective is on windows: of one with a root the buffer counts that all ranks use.
[[nodiscard]] bool on_windows(const CollectiveCall& call, const Session& state) noexcept;

}  // namespace slimwire
