// Exported functions that ask and end communicators.
#include <nccl_later.h>

#include <string>

#include "tools/emulator/nccl/bootstrap/comm_handle.h"
#include "tools/emulator/nccl/execution/async_state.h"

namespace slimwire::emu {
namespace {

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
}  // namespace slimwire::emu

namespace emu = slimwire::emu;
using slimwire::Status;

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

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclCommSuspend"));
        return (flags & NCCL_SUSPEND_MEM) != 0 ? found->suspend() : Status();
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommResume, (ncclComm_t comm)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclCommResume"));
        return found->resume();
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
