// Exported functions about the library, communicators, groups, operators and memory.
#include "tools/emulator/nccl/api.h"

#include <climits>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tools/emulator/nccl/device.h"
#include "tools/emulator/nccl/group.h"
#include "tools/emulator/nccl/unique_id.h"

struct ncclComm {
    std::shared_ptr<slimwire::emu::Communicator> impl;
};

namespace slimwire::emu {
namespace {

constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr unsigned kSimInfoMagic = 0x74685283;

struct Handles {
    std::mutex mutex;
    std::set<ncclComm_t> living;
};

Handles& handles() {
    static Handles* const all = new Handles;  // workers of streams may outlive static destructors
    return *all;
}

Status check_config(const ncclConfig_t* config, const char* function) {
    if (config == nullptr) {
        return {};
    }
    if (config->magic != kConfigMagic) {
        return {
            Code::kInvalidArgument,
            std::string(function) + ": the configuration was not set to NCCL_CONFIG_INITIALIZER"};
    }
    if (config->blocking == 0) {
        return {Code::kUnsupported,
                std::string(function) +
                    ": non-blocking communicators (blocking = 0) are not emulated yet"};
    }
    return {};
}

Status init_rank(ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank, int device) {
    const DeviceScope scope(device);
    SLIMWIRE_TRY_ASSIGN(auto comm, Communicator::create(id, nranks, rank, device));
    *out = make_handle(std::move(comm));
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
    SLIMWIRE_TRY(check_config(config, function));
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return {Code::kInvalidArgument, std::string(function) + ": rank " + std::to_string(rank) +
                                            " of " + std::to_string(nranks) +
                                            " ranks: expected 0 <= rank < nranks"};
    }
    int device = 0;
    SLIMWIRE_TRY(cuda_check(cudaGetDevice(&device), function));
    return run_or_defer([=] { return init_rank(out, nranks, id, rank, device); });
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
        out[i] = nullptr;
        const int device = list != nullptr ? list[i] : i;
        (void)run_or_defer([=] { return init_rank(&out[i], count, id, i, device); }).ok();
    }
    return group_end();
}

Status split(ncclComm_t handle, int color, int key, ncclComm_t* out, const ncclConfig_t* config) {
    constexpr char kName[] = "ncclCommSplit";
    SLIMWIRE_TRY_ASSIGN(auto comm, find_communicator(handle, kName));
    SLIMWIRE_TRY(require(out, kName, "newcomm"));
    *out = nullptr;
    SLIMWIRE_TRY(check_config(config, kName));
    if (color < NCCL_SPLIT_NOCOLOR) {
        return {Code::kInvalidArgument, std::string(kName) + ": color " + std::to_string(color) +
                                            ": expected a number >= 0 or NCCL_SPLIT_NOCOLOR"};
    }
    SLIMWIRE_TRY(comm->error());
    return run_or_defer([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(auto part, Communicator::split(*comm, color, key));
        if (part != nullptr) {
            *out = make_handle(std::move(part));
        }
        return {};
    });
}

// Ends a communicator by `how` and forgets its handle where `forget`.
Status end_communicator(ncclComm_t handle,
                        const char* function,
                        bool forget,
                        void (Communicator::*how)()) {
    if (handle == nullptr && forget) {
        return {};  // NCCL takes destroying nothing as done
    }
    SLIMWIRE_TRY_ASSIGN(auto comm, find_communicator(handle, function));
    (*comm.*how)();
    if (forget) {
        forget_handle(handle);
    }
    return {};
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

ncclComm_t make_handle(std::shared_ptr<Communicator> comm) {
    auto* handle = new ncclComm{std::move(comm)};
    const std::lock_guard lock(handles().mutex);
    handles().living.insert(handle);
    return handle;
}

Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle, const char* what) {
    if (handle == nullptr) {
        return Status(Code::kInvalidArgument, std::string(what) + ": communicator is NULL");
    }
    const std::lock_guard lock(handles().mutex);
    if (!handles().living.contains(handle)) {
        return Status(Code::kInvalidArgument,
                      std::string(what) + ": this is not a living communicator");
    }
    return handle->impl;
}

void forget_handle(ncclComm_t handle) {
    {
        const std::lock_guard lock(handles().mutex);
        handles().living.erase(handle);
    }
    delete handle;
}

Status require(const void* pointer, const char* what, const char* name) {
    if (pointer == nullptr) {
        return {Code::kInvalidArgument, std::string(what) + ": " + name + " is NULL"};
    }
    return {};
}

Status unsupported(const char* function) {
    return {Code::kUnsupported, std::string(function) + " is not emulated"};
}

}  // namespace slimwire::emu

namespace emu = slimwire::emu;
using slimwire::Status;

// --- Library

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGetVersion, (int* version)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(version, "ncclGetVersion", "version"));
        *version = NCCL_VERSION_CODE;
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(const char*, ncclGetErrorString, (ncclResult_t result)) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError:
            return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError:
            return "internal error - please report this issue to the NCCL developers";
        case ncclInvalidArgument:
            return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage:
            return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        case ncclNumResults:
            break;
    }
    return "unknown result code";
}

SLIMWIRE_NCCL_EXPORT(const char*, ncclGetLastError, (ncclComm_t)) {
    return emu::last_error();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
SLIMWIRE_NCCL_EXPORT(void, ncclResetDebugInit, ()) {
    emu::reset_verbosity();
}
#pragma GCC diagnostic pop
extern "C" __attribute__((visibility("default"))) void ncclResetDebugInitInternal();
extern "C" void ncclResetDebugInitInternal() {
    emu::reset_verbosity();
}

// --- Communicators

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

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommFinalize, (ncclComm_t comm)) {
    return emu::guarded([=] {
        return emu::end_communicator(comm, "ncclCommFinalize", false, &emu::Communicator::finalize);
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommDestroy, (ncclComm_t comm)) {
    return emu::guarded([=] {
        return emu::end_communicator(comm, "ncclCommDestroy", true, &emu::Communicator::finalize);
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommAbort, (ncclComm_t comm)) {
    return emu::guarded([=] {
        return emu::end_communicator(comm, "ncclCommAbort", true, &emu::Communicator::abort);
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommGetAsyncError,
                     (ncclComm_t comm, ncclResult_t* async_error)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclCommGetAsyncError";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(async_error, kName, "asyncError"));
        *async_error = emu::nccl_code(found->error().code());
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

// --- Groups

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGroupStart, ()) {
    emu::group_start();
    return ncclSuccess;
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGroupEnd, ()) {
    return emu::guarded([] { return emu::group_end(); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(info, "ncclGroupSimulateEnd", "simInfo"));
        if (info->magic != emu::kSimInfoMagic) {
            return {slimwire::Code::kInvalidArgument,
                    "ncclGroupSimulateEnd: simInfo was not set to NCCL_SIM_INFO_INITIALIZER"};
        }
        return emu::group_simulate_end(&info->estimatedTime);
    });
}

// --- Operators

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclRedOpCreatePreMulSum,
                     (ncclRedOp_t * op,
                      void* scalar,
                      ncclDataType_t datatype,
                      ncclScalarResidence_t residence,
                      ncclComm_t comm)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclRedOpCreatePreMulSum";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(op, kName, "op"));
        SLIMWIRE_TRY(emu::require(scalar, kName, "scalar"));
        if (datatype < 0 || datatype >= ncclNumTypes) {
            return {slimwire::Code::kInvalidArgument,
                    std::string(kName) + ": invalid type " + std::to_string(datatype)};
        }
        if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
            return {slimwire::Code::kInvalidArgument,
                    std::string(kName) + ": invalid residence " + std::to_string(residence)};
        }
        // A scalar in host-visible memory may lie in memory of the emulated device.
        const bool on_device = residence == ncclScalarDevice;
        const void* source = on_device ? scalar : emu::emulator_api().device_view(scalar);
        SLIMWIRE_TRY_ASSIGN(
            *op, found->make_operator(source, static_cast<slimwire::DType>(datatype), on_device));
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclRedOpDestroy"));
        return found->destroy_operator(op);
    });
}

// --- Memory

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclMemAlloc, (void** pointer, size_t bytes)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(pointer, "ncclMemAlloc", "ptr"));
        return emu::cuda_check(cudaMalloc(pointer, bytes), "ncclMemAlloc");
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclMemFree, (void* pointer)) {
    return emu::guarded([=] { return emu::cuda_check(cudaFree(pointer), "ncclMemFree"); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommRegister,
                     (const ncclComm_t comm, void* buffer, size_t, void** handle)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::find_communicator(comm, "ncclCommRegister").status());
        SLIMWIRE_TRY(emu::require(handle, "ncclCommRegister", "handle"));
        *handle = buffer;  // nothing to do: all memory is one hop away
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void*)) {
    return emu::guarded(
        [=] { return emu::find_communicator(comm, "ncclCommDeregister").status(); });
}
