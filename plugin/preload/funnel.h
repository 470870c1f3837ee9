// The one funnel between the exported functions and collectives/: is slimwire up, is the caller
// NCCL itself, is there a real function to forward to. Everything here is inlined into the entry
// points; a call that is not ours costs a load, a few compares and an indirect call.
#pragma once

#include <nccl.h>

#include <optional>

#include "collectives/communicator/lifecycle.h"
#include "collectives/communicator/process.h"
#include "collectives/dispatch/dispatch.h"

namespace slimwire::preload {

// The runtime of this process; null when nothing can be done at all (no real NCCL).
inline Runtime* runtime() noexcept {
    return process_runtime(reinterpret_cast<const void*>(&::ncclAllReduce));
}

// Result of a call that has no real function behind it.
inline ncclResult_t missing() noexcept {
    Runtime::last_error() =
        "slimwire: the real NCCL was not found, or it lacks this function; set "
        "SLIMWIRE_NCCL_LIBRARY to "
        "the path of libnccl.so.2 and see `slimwire doctor`";
    return ncclSystemError;
}

// Calls the real function with re-entry marked, so that exported functions it calls back forward.
template <class Function, class... Args>
ncclResult_t forward(Function* function, Args... args) noexcept {
    if (function == nullptr) {
        return missing();
    }
    const ReentryGuard guard;
    const ncclResult_t result = function(args...);
    if (result != ncclSuccess && result != ncclInProgress) {
        Runtime::last_error().clear();  // the real NCCL explains this failure
    }
    return result;
}

// Whether slimwire has a say in a call that came from `caller`.
inline bool ours(const Runtime* runtime, const void* caller) noexcept {
    return !ReentryGuard::inside() && !Runtime::forked() && !runtime->nccl.called_from_nccl(caller);
}

}  // namespace slimwire::preload

// First lines of every entry point: gets the runtime into `rt`, and forwards `name(args...)` unless
// slimwire has a say.
#define SLIMWIRE_ENTER(name, ...)                                         \
    ::slimwire::Runtime* const rt = ::slimwire::preload::runtime();       \
    if (rt == nullptr) {                                                  \
        return ::slimwire::preload::missing();                            \
    }                                                                     \
    if (!::slimwire::preload::ours(rt, __builtin_return_address(0))) {    \
        return rt->nccl.name != nullptr ? rt->nccl.name(__VA_ARGS__)      \
                                        : ::slimwire::preload::missing(); \
    }
