// The NCCLs of this process, and which of them a call is for: a module may have one of its own
// linked in, and two frameworks may bring one each. A call with a communicator is for the library
// that made it. Any other is for the library that its caller's module would call without slimwire:
// the next in the loader's search order, else the one in the module's own scope, else the only one
// there is. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/call/real_nccl.h"

struct link_map;

namespace slimwire {

// Code that calls NCCL: a module's, or one address of code that is in no module.
struct NcclCaller {
    uintptr_t begin = 0, size = 0;
    uint64_t generation = 0;         // NcclLibraries' when this was found out
    const RealNccl* nccl = nullptr;  // that it calls; null: there is none
    bool is_nccl = false;            // NCCL calls itself
    bool unclear = false;            // nothing says which of several NCCLs it calls
};

class NcclLibraries {
  public:
    // SLIMWIRE_NCCL_LIBRARY: stands for every libnccl, but not for one linked into a module. Before
    // the first call.
    void set_named(const std::string& path) { named_ = path; }

    // Who calls, by the address that the call returns to. Costs a few compares on a thread's repeat
    // from one module.
    [[nodiscard]] const NcclCaller& caller(const void* address) noexcept {
        const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - t_last.begin;
        return offset < t_last.size &&
                       t_last.generation == generation_.load(std::memory_order_acquire)
                   ? t_last
                   : find_caller(address);
    }
    // The same before a call that makes something, where modules may have been unloaded since.
    [[nodiscard]] const NcclCaller& caller_now(const void* address) noexcept {
        forget_unloaded();
        return caller(address);
    }

    // Whether the process has more than one. Until then every call is for the caller's.
    [[nodiscard]] bool several() const noexcept { return several_.load(std::memory_order_acquire); }
    // The library that made `comm`; `otherwise` where that was not recorded.
    [[nodiscard]] const RealNccl* of(ncclComm_t comm, const RealNccl* otherwise) const noexcept;
    // A communicator came, or is about to go. A null handle is none.
    void record(ncclComm_t comm, const RealNccl* nccl);
    void forget(ncclComm_t comm) noexcept;

    // The first that was found; an empty table before that.
    [[nodiscard]] const RealNccl& first() const noexcept;

  private:
    const NcclCaller& find_caller(const void* address) noexcept;
    Status resolve(const void* address, NcclCaller* caller);
    Result<const RealNccl*> open_named();
    Result<const RealNccl*> only(bool* unclear);
    const RealNccl* adopt(const void* probe, bool with_next);
    void forget_unloaded() noexcept;
    void forget_callers() noexcept;

    static inline constinit thread_local NcclCaller t_last;

    std::string named_;
    std::atomic<uint64_t> generation_{1};
    std::atomic<bool> several_{false};
    mutable std::mutex mutex_;  // of all below; never held around a call into the loader
    std::deque<RealNccl> all_;  // never unloaded
    std::vector<NcclCaller> callers_;
    std::unordered_map<ncclComm_t, const RealNccl*> of_comm_;
    unsigned long long unloads_ = 0;  // that the loader counted
};

}  // namespace slimwire
