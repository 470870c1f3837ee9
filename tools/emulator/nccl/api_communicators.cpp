// Exported functions that make, ask, split and end communicators, and the handles behind
// ncclComm_t. A non-blocking communicator's handle exists before the communicator does.
#include <nccl_later.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tools/emulator/nccl/api.h"
#include "tools/emulator/nccl/device.h"
#include "tools/emulator/nccl/group.h"
#include "tools/emulator/nccl/unique_id.h"

struct ncclComm {
    std::shared_ptr<slimwire::emu::Communicator> impl;  // null until it is initialised
    slimwire::emu::AsyncRef async;                      // null for blocking communicators
};

namespace slimwire::emu {
namespace {

constexpr unsigned kConfigMagic = 0xcafebeef;

struct Handles {
    std::mutex mutex;  // guards what the handles hold, too
    std::set<ncclComm_t> living;
};

Handles& handles() {
    static Handles* const all = new Handles;  // workers of streams may outlive static destructors
    return *all;
}

ncclComm_t make_handle(std::shared_ptr<Communicator> comm, AsyncRef async = nullptr) {
    auto* handle = new ncclComm{std::move(comm), std::move(async)};
    const std::lock_guard lock(handles().mutex);
    handles().living.insert(handle);
    return handle;
}

void forget_handle(ncclComm_t handle) {
    {
        const std::lock_guard lock(handles().mutex);
        handles().living.erase(handle);
    }
    delete handle;
}

// What a living handle holds, also while it is busy.
Result<ncclComm> look_at(ncclComm_t handle, const char* what) {
    if (handle == nullptr) {
        return Status(Code::kInvalidArgument, std::string(what) + ": communicator is NULL");
    }
    const std::lock_guard lock(handles().mutex);
    if (!handles().living.contains(handle)) {
        return Status(Code::kInvalidArgument,
                      std::string(what) + ": this is not a living communicator");
    }
    return *handle;
}

// Whether what was seen of a handle is busy. A communicator that was delivered after the look is
// not in it, though its step is over by now.
bool busy(const ncclComm& seen) {
    return seen.async != nullptr &&
           (seen.async->busy() || (seen.impl == nullptr && seen.async->outcome().ok()));
}

Status refusal(const char* what) {
    return {Code::kInvalidArgument, std::string(what) +
                                        ": the communicator's previous operation is still in "
                                        "progress (ask ncclCommGetAsyncError)"};
}

// Gives a handle its communicator; ends the communicator if the handle was aborted meanwhile.
void fill_handle(ncclComm_t handle, const std::shared_ptr<Communicator>& comm) {
    {
        const std::lock_guard lock(handles().mutex);
        if (handles().living.contains(handle)) {
            handle->impl = comm;
            return;
        }
    }
    comm->abort();
}

// Where a communicator to be made will appear: a handle for a non-blocking one, made at once and
// busy from then on, or the place for a handle.
class Target {
  public:
    Target(ncclComm_t* out, bool blocking) : out_(out) {
        *out = nullptr;
        if (!blocking) {
            async_ = std::make_shared<AsyncState>();
            async_->start();
            *out = handle_ = make_handle(nullptr, async_);
        }
    }
    void deliver(const std::shared_ptr<Communicator>& comm) const {
        if (handle_ == nullptr) {
            // Another thread may be waiting for it to appear, to abort it.
            __atomic_store_n(out_, make_handle(comm), __ATOMIC_RELEASE);
            return;
        }
        comm->set_async(async_);
        fill_handle(handle_, comm);
    }
    [[nodiscard]] std::vector<AsyncRef> busy() const {
        return async_ != nullptr ? std::vector{async_} : std::vector<AsyncRef>{};
    }

  private:
    ncclComm_t* out_;
    ncclComm_t handle_ = nullptr;
    AsyncRef async_;
};

// Whether a communicator of this configuration is blocking; `otherwise` when nothing says so.
Result<bool> is_blocking(const ncclConfig_t* config, const char* function, bool otherwise) {
    if (config != nullptr && config->magic != kConfigMagic) {
        return Status(
            Code::kInvalidArgument,
            std::string(function) + ": the configuration was not set to NCCL_CONFIG_INITIALIZER");
    }
    if (const char* forced = std::getenv("NCCL_COMM_BLOCKING"); forced != nullptr) {
        return std::strcmp(forced, "0") != 0;
    }
    if (config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT) {
        return otherwise;
    }
    if (config->blocking != 0 && config->blocking != 1) {
        return Status(Code::kInvalidArgument, std::string(function) + ": config.blocking is " +
                                                  std::to_string(config->blocking) +
                                                  ": expected 0 or 1");
    }
    return config->blocking == 1;
}

Status init_rank(const Target& target, int nranks, const ncclUniqueId& id, int rank, int device) {
    const DeviceScope scope(device);
    SLIMWIRE_TRY_ASSIGN(const auto comm, Communicator::create(id, nranks, rank, device));
    target.deliver(comm);
    return {};
}

Status start_init(ncclComm_t* out,
                  int nranks,
                  const ncclUniqueId& id,
                  int rank,
                  const ncclConfig_t* config,
                  const char* function) {
    SLIMWIRE_TRY(require(out, function, "comm"));
    *out = nullptr;
    SLIMWIRE_TRY_ASSIGN(const bool blocking, is_blocking(config, function, true));
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return {Code::kInvalidArgument, std::string(function) + ": rank " + std::to_string(rank) +
                                            " of " + std::to_string(nranks) +
                                            " ranks: expected 0 <= rank < nranks"};
    }
    int device = 0;
    SLIMWIRE_TRY(cuda_check(cudaGetDevice(&device), function));
    const Target target(out, blocking);
    return run_or_defer([=] { return init_rank(target, nranks, id, rank, device); }, target.busy());
}

Status init_scalable(ncclComm_t* out,
                     int nranks,
                     int rank,
                     int id_count,
                     const ncclUniqueId* ids,
                     const ncclConfig_t* config) {
    constexpr char kName[] = "ncclCommInitRankScalable";
    SLIMWIRE_TRY(require(ids, kName, "commIds"));
    if (id_count < 1 || id_count > nranks) {
        return {Code::kInvalidArgument, std::string(kName) + ": " + std::to_string(id_count) +
                                            " ids for " + std::to_string(nranks) +
                                            " ranks: expected 1 to nranks"};
    }
    // One root is enough here; those of the other ids wait in vain.
    return start_init(out, nranks, ids[0], rank, config, kName);
}

Status init_all(ncclComm_t* out, int count, const int* list) {
    SLIMWIRE_TRY(require(out, "ncclCommInitAll", "comm"));
    const int available = device_count();
    if (count < 1 || count > available) {
        return {Code::kInvalidArgument, "ncclCommInitAll: " + std::to_string(count) +
                                            " devices wanted, there are " +
                                            std::to_string(available) + " (SLIMWIRE_EMU_DEVICES)"};
    }
    std::set<int> seen;
    for (int i = 0; i < count; ++i) {
        const int device = list != nullptr ? list[i] : i;
        if (device < 0 || device >= available) {
            return {Code::kInvalidArgument,
                    "ncclCommInitAll: invalid device " + std::to_string(device)};
        }
        if (!seen.insert(device).second) {
            return {Code::kInvalidUsage,
                    "ncclCommInitAll: device " + std::to_string(device) + " is listed twice"};
        }
    }
    ncclUniqueId id;
    SLIMWIRE_TRY(make_unique_id(&id));
    group_start();
    for (int i = 0; i < count; ++i) {
        const int device = list != nullptr ? list[i] : i;
        const Target target(&out[i], true);
        (void)run_or_defer([=] { return init_rank(target, count, id, i, device); }).ok();
    }
    return group_end();
}

// Makes a communicator out of a part of `parent` by make(parent), which gives null where this rank
// is not in it. The parent is busy meanwhile, too.
Status start_part(const std::shared_ptr<Communicator>& parent,
                  ncclComm_t* out,
                  const ncclConfig_t* config,
                  const char* function,
                  bool takes_part,
                  std::function<Result<std::shared_ptr<Communicator>>(Communicator&)> make) {
    SLIMWIRE_TRY_ASSIGN(const bool blocking,
                        is_blocking(config, function, parent->async() == nullptr));
    const Target target(out, blocking || !takes_part);
    std::vector<AsyncRef> busy = target.busy();
    if (parent->async() != nullptr) {
        parent->async()->start();
        busy.push_back(parent->async());
    }
    return run_or_defer(
        [=]() -> Status {
            SLIMWIRE_TRY_ASSIGN(const auto part, make(*parent));
            if (part != nullptr) {
                target.deliver(part);
            }
            return {};
        },
        std::move(busy));
}

Status split(ncclComm_t handle, int color, int key, ncclComm_t* out, const ncclConfig_t* config) {
    constexpr char kName[] = "ncclCommSplit";
    SLIMWIRE_TRY_ASSIGN(auto comm, find_communicator(handle, kName));
    SLIMWIRE_TRY(require(out, kName, "newcomm"));
    *out = nullptr;
    if (color < NCCL_SPLIT_NOCOLOR) {
        return {Code::kInvalidArgument, std::string(kName) + ": color " + std::to_string(color) +
                                            ": expected a number >= 0 or NCCL_SPLIT_NOCOLOR"};
    }
    SLIMWIRE_TRY(comm->error());
    return start_part(
        comm, out, config, kName, color != NCCL_SPLIT_NOCOLOR,
        [=](Communicator& parent) { return Communicator::split(parent, color, key); });
}

Status shrink(ncclComm_t handle,
              const int* list,
              int count,
              ncclComm_t* out,
              const ncclConfig_t* config,
              int flags) {
    constexpr char kName[] = "ncclCommShrink";
    SLIMWIRE_TRY_ASSIGN(auto comm, find_communicator(handle, kName));
    SLIMWIRE_TRY(require(out, kName, "newcomm"));
    SLIMWIRE_TRY(require(list, kName, "excludeRanksList"));
    *out = nullptr;
    if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT) {
        return {Code::kInvalidArgument,
                std::string(kName) + ": unknown flags " + std::to_string(flags)};
    }
    std::vector<int> excluded(list, list + std::max(count, 0));
    std::sort(excluded.begin(), excluded.end());
    const bool repeats = std::adjacent_find(excluded.begin(), excluded.end()) != excluded.end();
    if (excluded.empty() || repeats || excluded.front() < 0 || excluded.back() >= comm->size() ||
        std::binary_search(excluded.begin(), excluded.end(), comm->rank())) {
        return {Code::kInvalidArgument,
                std::string(kName) +
                    ": the list of excluded ranks must name some of the ranks 0.." +
                    std::to_string(comm->size() - 1) + " once each, and not the caller"};
    }
    const bool abort = flags == NCCL_SHRINK_ABORT;
    if (!abort) {
        SLIMWIRE_TRY(comm->error());
    }
    return start_part(comm, out, config, kName, true, [=](Communicator& parent) {
        return Communicator::shrink(parent, excluded, abort);
    });
}

// The ranks of `handle` learn the id over it; then all of them and the new ones join at the id's
// root as at a creation, the old ones with the ranks they had.
Status grow(ncclComm_t handle,
            int nranks,
            const ncclUniqueId* id,
            int rank,
            ncclComm_t* out,
            const ncclConfig_t* config) {
    constexpr char kName[] = "ncclCommGrow";
    if (handle == nullptr) {
        SLIMWIRE_TRY(require(id, kName, "uniqueId"));
        return start_init(out, nranks, *id, rank, config, kName);
    }
    SLIMWIRE_TRY_ASSIGN(const auto comm, find_communicator(handle, kName));
    SLIMWIRE_TRY(require(out, kName, "newcomm"));
    *out = nullptr;
    if (nranks <= comm->size() || rank != -1) {
        return {Code::kInvalidArgument,
                std::string(kName) + ": " + std::to_string(nranks) + " ranks and rank " +
                    std::to_string(rank) + ": expected more than " + std::to_string(comm->size()) +
                    " ranks, and rank -1 of one that is in the communicator"};
    }
    SLIMWIRE_TRY(comm->error());
    const ncclUniqueId mine = id != nullptr ? *id : ncclUniqueId{};
    return start_part(comm, out, config, kName, true,
                      [=](Communicator& parent) -> Result<std::shared_ptr<Communicator>> {
                          SLIMWIRE_TRY_ASSIGN(const ncclUniqueId shared, parent.share_id(mine));
                          const DeviceScope scope(parent.device());
                          return Communicator::create(shared, nranks, parent.rank(),
                                                      parent.device());
                      });
}

Status finalize(ncclComm_t handle) {
    SLIMWIRE_TRY_ASSIGN(const auto comm, find_communicator(handle, "ncclCommFinalize"));
    if (comm->async() == nullptr) {
        comm->finalize();
        return {};
    }
    comm->async()->start();
    run_in_background(
        [comm]() -> Status {
            comm->finalize();
            return {};
        },
        {comm->async()});
    return {};
}

// Destroying nothing is taken as done, as by NCCL.
Status destroy(ncclComm_t handle) {
    if (handle == nullptr) {
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(const ncclComm found, look_at(handle, "ncclCommDestroy"));
    if (busy(found)) {
        return refusal("ncclCommDestroy");
    }
    if (found.impl != nullptr) {
        found.impl->finalize();
    }
    forget_handle(handle);
    return {};
}

// Also in the middle of a step.
Status abort(ncclComm_t handle) {
    if (handle == nullptr) {
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(const ncclComm found, look_at(handle, "ncclCommAbort"));
    if (found.impl != nullptr) {
        found.impl->abort();
    }
    forget_handle(handle);
    return {};
}

ncclResult_t async_error(const ncclComm& comm) {
    if (busy(comm)) {
        return ncclInProgress;
    }
    if (comm.async != nullptr) {
        if (const Status outcome = comm.async->outcome(); !outcome.ok()) {
            return nccl_code(outcome.code());
        }
    }
    return nccl_code(comm.impl->error().code());
}

// Writes one number of a communicator.
Status query(ncclComm_t handle,
             int* out,
             const char* function,
             int (Communicator::*what)() const noexcept) {
    SLIMWIRE_TRY_ASSIGN(auto comm, find_communicator(handle, function));
    SLIMWIRE_TRY(require(out, function, "result"));
    *out = (*comm.*what)();
    return {};
}

}  // namespace

Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle, const char* what) {
    SLIMWIRE_TRY_ASSIGN(const ncclComm found, look_at(handle, what));
    if (busy(found)) {
        return refusal(what);
    }
    if (found.async != nullptr) {
        SLIMWIRE_TRY(found.async->outcome());
    }
    return found.impl;
}

}  // namespace slimwire::emu

namespace emu = slimwire::emu;
using slimwire::Status;

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(id, "ncclGetUniqueId", "uniqueId"));
        return emu::make_unique_id(id);
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommInitRank,
                     (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank)) {
    return emu::guarded([&] {
        return emu::group_error(
            emu::start_init(comm, nranks, id, rank, nullptr, "ncclCommInitRank"));
    });
}

SLIMWIRE_NCCL_EXPORT(
    ncclResult_t,
    ncclCommInitRankConfig,
    (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config)) {
    return emu::guarded([&] {
        return emu::group_error(
            emu::start_init(comm, nranks, id, rank, config, "ncclCommInitRankConfig"));
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommInitRankScalable,
                     (ncclComm_t * comm,
                      int nranks,
                      int rank,
                      int id_count,
                      ncclUniqueId* ids,
                      ncclConfig_t* config)) {
    return emu::guarded([&] {
        return emu::group_error(emu::init_scalable(comm, nranks, rank, id_count, ids, config));
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommInitAll,
                     (ncclComm_t * comm, int ndev, const int* devlist)) {
    return emu::guarded([&] { return emu::group_error(emu::init_all(comm, ndev, devlist)); });
}

SLIMWIRE_NCCL_EXPORT(
    ncclResult_t,
    ncclCommSplit,
    (ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config)) {
    return emu::guarded(
        [&] { return emu::group_error(emu::split(comm, color, key, newcomm, config)); });
}

SLIMWIRE_NCCL_EXPORT(
    ncclResult_t,
    ncclCommShrink,
    (ncclComm_t comm, int* list, int count, ncclComm_t* newcomm, ncclConfig_t* config, int flags)) {
    return emu::guarded(
        [&] { return emu::group_error(emu::shrink(comm, list, count, newcomm, config, flags)); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId* id)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclCommGetUniqueId";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(id, kName, "uniqueId"));
        SLIMWIRE_TRY(found->error());
        return emu::make_unique_id(id);
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommGrow,
                     (ncclComm_t comm,
                      int nranks,
                      const ncclUniqueId* id,
                      int rank,
                      ncclComm_t* newcomm,
                      ncclConfig_t* config)) {
    return emu::guarded(
        [&] { return emu::group_error(emu::grow(comm, nranks, id, rank, newcomm, config)); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommFinalize, (ncclComm_t comm)) {
    return emu::guarded([=] { return emu::finalize(comm); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommDestroy, (ncclComm_t comm)) {
    return emu::guarded([=] { return emu::destroy(comm); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommAbort, (ncclComm_t comm)) {
    return emu::guarded([=] { return emu::abort(comm); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclCommRevoke"));
        if (flags != NCCL_REVOKE_DEFAULT) {
            return {slimwire::Code::kInvalidArgument,
                    "ncclCommRevoke: unknown flags " + std::to_string(flags)};
        }
        found->revoke();
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommGetAsyncError,
                     (ncclComm_t comm, ncclResult_t* async_error)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclCommGetAsyncError";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::look_at(comm, kName));
        SLIMWIRE_TRY(emu::require(async_error, kName, "asyncError"));
        *async_error = emu::async_error(found);
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int* count)) {
    return emu::guarded(
        [=] { return emu::query(comm, count, "ncclCommCount", &emu::Communicator::size); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int* device)) {
    return emu::guarded(
        [=] { return emu::query(comm, device, "ncclCommCuDevice", &emu::Communicator::device); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int* rank)) {
    return emu::guarded(
        [=] { return emu::query(comm, rank, "ncclCommUserRank", &emu::Communicator::rank); });
}
