// Symmetric windows: memory of all ranks that NCCL's own kernels and copy engines reach directly
// (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC). Collectives on them stay native. All ranks
// register a window, and call with buffers at the same place in it, or with none of them, as NCCL's
// manual asks: so buffers decide here, and alike on all ranks.
//
// Kept for one communicator, and like it used by one thread at a time.
#pragma once

#include <nccl_later.h>

#include <cstddef>

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

// After the real ncclCommWindowRegister, which returned `result`. What the thread's group registers
// counts from its end on, what NCCL makes in the background from windows_ready() on.
void window_registered(Runtime& runtime,
                       ncclComm_t comm,
                       const SymmetricWindow& window,
                       int flags,
                       ncclResult_t result);
// Before the real ncclCommWindowDeregister.
void window_deregistered(Runtime& runtime, ncclComm_t comm, ncclWindow_t handle) noexcept;
// The communicator has made all that it was told to: takes the handles. Null are those of NCCLs and
// machines that have no such windows.
void windows_ready(Session* state) noexcept;
void windows_ready(Runtime& runtime, ncclComm_t comm) noexcept;

// Whether the collective is on windows: of one with a root the buffer counts that all ranks use.
[[nodiscard]] bool on_windows(const CollectiveCall& call, const Session& state) noexcept;

}  // namespace slimwire
