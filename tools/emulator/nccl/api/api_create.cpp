// Exported functions that make communicators.
#include "tools/emulator/nccl/api/api_create.h"

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "tools/emulator/nccl/bootstrap/comm_handle.h"
#include "tools/emulator/nccl/bootstrap/unique_id.h"
#include "tools/emulator/nccl/execution/group.h"
#include "tools/emulator/nccl/plugins/plugin_library.h"
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

}  // namespace

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

namespace {

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
