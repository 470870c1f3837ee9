// Exported functions that make a communicator out of another one: split, shrink, grow.
#include <nccl_later.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tools/emulator/nccl/api/api_create.h"
#include "tools/emulator/nccl/bootstrap/comm_handle.h"
#include "tools/emulator/nccl/bootstrap/unique_id.h"
#include "tools/emulator/nccl/execution/group.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

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
    const CommSettings settings = comm_settings(config, comm->settings());
    return start_part(
        comm, out, config, kName, color != NCCL_SPLIT_NOCOLOR,
        [=](Communicator& parent) { return Communicator::split(parent, color, key, settings); });
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
    return start_part(comm, out, config, kName, true, [=](Communicator& parent) {
        return Communicator::shrink(parent, excluded, abort, settings);
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
    return start_part(comm, out, config, kName, true,
                      [=](Communicator& parent) -> Result<std::shared_ptr<Communicator>> {
                          SLIMWIRE_TRY_ASSIGN(const ncclUniqueId shared, parent.share_id(mine));
                          const DeviceScope scope(parent.device());
                          return Communicator::create(shared, nranks, parent.rank(),
                                                      parent.device(), settings);
                      });
}

}  // namespace
}  // namespace slimwire::emu

namespace emu = slimwire::emu;
using slimwire::Status;

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
