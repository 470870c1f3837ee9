// The one funnel between the exported functions and collectives/: is slimwire up, which NCCL is the
// call for, is the caller NCCL itself, is there a real function to forward to. Everything here is
// inlined into the entry points; a call that is not ours costs a load, a few compares and an
// indirect call.
#pragma once

#include <nccl.h>

#include "collectives/communicator/process.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/thread_group.h"

namespace slimwire::preload {

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

// A call that slimwire has a say in, while which no communicator that it finds is freed. Calls that
// a group has queued go on.
class OwnCall {
  public:
    OwnCall() noexcept { CommUse::begin(); }
    ~OwnCall() { CommUse::end(in_group()); }
    OwnCall(const OwnCall&) = delete;
    OwnCall& operator=(const OwnCall&) = delete;
};

// A call from outside.
struct Entry {
    Runtime* rt = nullptr;           // of this process
    const RealNccl* nccl = nullptr;  // that the call is for; null: nothing can be done at all
    bool ours = false;               // slimwire has a say in it
};

// Of a call of `from`, with a communicator or null.
inline Entry make_entry(Runtime* rt, const NcclCaller& from, ncclComm_t comm) noexcept {
    Entry entry{rt, from.nccl, !ReentryGuard::inside() && !Runtime::forked() && !from.is_nccl};
    if (rt->libraries.several()) {
        entry.nccl = comm != nullptr ? rt->libraries.of(comm, from.nccl) : from.nccl;
        entry.ours = entry.ours && (comm != nullptr || !from.unclear);
        if (entry.ours && entry.nccl != nullptr) {
            enter_groups_of(*entry.nccl);
        }
    }
    return entry;
}

// Of a call with a communicator, which returns to `caller`.
inline Entry enter(ncclComm_t comm, const void* caller) noexcept {
    Runtime* const rt = process_runtime(caller);
    return rt != nullptr ? make_entry(rt, rt->libraries.caller(caller), comm) : Entry();
}

// Of a call without one. `makes`: an id or a communicator; else it begins or ends a group.
inline Entry enter(bool makes, const void* caller) noexcept {
    Runtime* const rt = process_runtime(caller);
    return rt == nullptr ? Entry()
           : makes       ? make_entry(rt, rt->libraries.caller_now(caller), nullptr)
                         : make_entry(rt, rt->libraries.caller(caller), nullptr);
}
constexpr bool kMakes = true, kGroups = false;

}  // namespace slimwire::preload

// First lines of every entry point, with the communicator of the call, kMakes or kGroups: gets the
// runtime into `rt` and the library into `nccl`, and forwards `name(args...)` unless slimwire has a
// say.
#define SLIMWIRE_ENTER(of, name, ...)                                                            \
    const ::slimwire::preload::Entry entry =                                                     \
        ::slimwire::preload::enter(of, __builtin_return_address(0));                             \
    [[maybe_unused]] ::slimwire::Runtime* const rt = entry.rt;                                   \
    const ::slimwire::RealNccl* const nccl = entry.nccl;                                         \
    if (nccl == nullptr) {                                                                       \
        return ::slimwire::preload::missing();                                                   \
    }                                                                                            \
    if (!entry.ours) {                                                                           \
        return nccl->name != nullptr ? nccl->name(__VA_ARGS__) : ::slimwire::preload::missing(); \
    }                                                                                            \
    const ::slimwire::preload::OwnCall own_call;
