// Exported functions that make communicators, also out of another one: split, shrink, grow.
#include <nccl_later.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tools/emulator/nccl/bootstrap/comm_handle.h"
#include "tools/emulator/nccl/bootstrap/unique_id.h"
#include "tools/emulator/nccl/execution/group.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

constexpr unsigned kConfigMagic = 0xcafebeef;

Status init_rank(const Target& target,
                 int nranks,
                 const ncclUniqueId& id,
                 int rank,
                 int device,
                 const CommSettings& settings) {
    const DeviceScope scope(device);
    SLIMWIRE_TRY_ASSIGN(const auto comm, Communicator::create(id, nranks, rank, device, settings));
    target.deliver(comm);
    return {};
}

// Whether a communicator of this configuration is blocking; `otherwise` when nothing says so.
Result<bool> is_blocking(const ncclConfig_t* config, const char* function, bool otherwise) {
    if (config != nullptr && config->magic != kConfigMagic) {
        return Status(
            Code::kInvalidArgument,
            std::string(function) + ": the configuration was not set to NCCL_CONFIG_INITIALIZER");
    }
    if (const char* forced = getenv("NCCL_COMM_BLOCKING"); forced != nullptr) {
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

// Joins the communicator of `id` as `rank`, now, at the group's end or in the background; `*out`
// receives the handle.
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
    const CommSettings settings = comm_settings(config);
    return run_or_defer([=] { return init_rank(target, nranks, id, rank, device, settings); },
                        target.busy());
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
    const CommSettings settings = comm_settings(nullptr);
    group_start();
    for (int i = 0; i < count; ++i) {
        const int device = list != nullptr ? list[i] : i;
        const Target target(&out[i], true);
        (void)run_or_defer([=] { return init_rank(target, count, id, i, device, settings); }).ok();
    }
    return group_end();
}

// Makes a communicator out of a part of `parent` by make(parent, its number), which gives null
// where this rank is not in it. The parent is busy meanwhile, too.
Status start_part(
    const std::shared_ptr<Communicator>& parent,
    Communicator::Part part,
    ncclComm_t* out,
    const ncclConfig_t* config,
    const char* function,
    bool takes_part,
    std::function<Result<std::shared_ptr<Communicator>>(Communicator&, uint64_t)> make) {
    SLIMWIRE_TRY_ASSIGN(const bool blocking,
                        is_blocking(config, function, parent->async() == nullptr));
    const Target target(out, blocking || !takes_part);
    std::vector<AsyncRef> busy = target.busy();
    if (parent->async() != nullptr) {
        parent->async()->start();
        busy.push_back(parent->async());
    }
    return run_or_defer(
        [=, number = parent->next_number(part)]() -> Status {
            SLIMWIRE_TRY_ASSIGN(const auto made, make(*parent, number));
            if (made != nullptr) {
                target.deliver(made);
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
    const CommSettings settings = comm_settings(config, comm->settings());
    return start_part(comm, Communicator::Part::kSplit, out, config, kName,
                      color != NCCL_SPLIT_NOCOLOR, [=](Communicator& parent, uint64_t number) {
                          return Communicator::split(parent, number, color, key, settings);
                      });
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
    const CommSettings settings = comm_settings(config, comm->settings());
    return start_part(comm, Communicator::Part::kShrunk, out, config, kName, true,
                      [=](Communicator& parent, uint64_t number) {
                          return Communicator::shrink(parent, number, excluded, abort, settings);
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
    const CommSettings settings = comm_settings(config, comm->settings());
    const ncclUniqueId mine = id != nullptr ? *id : ncclUniqueId{};
    return start_part(
        comm, Communicator::Part::kGrown, out, config, kName, true,
        [=](Communicator& parent, uint64_t number) -> Result<std::shared_ptr<Communicator>> {
            SLIMWIRE_TRY_ASSIGN(const ncclUniqueId shared, parent.share_id(number, mine));
            const DeviceScope scope(parent.device());
            return Communicator::create(shared, nranks, parent.rank(), parent.device(), settings);
        });
}

}  // namespace
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
