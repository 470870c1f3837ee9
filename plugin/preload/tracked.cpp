// Exported NCCL functions that slimwire follows: groups, communicators coming and going, operators
// made by the program, error texts. Each calls the real function once and tells collectives/ about
// it.
#include <cstring>

#include "collectives/call/nccl_types.h"
#include "collectives/communicator/lifecycle.h"
#include "plugin/preload/funnel.h"

using namespace slimwire;
using namespace slimwire::preload;

namespace {

// A host scalar of a pre-multiplied sum as a float.
float scalar_value(const void* scalar, ncclDataType_t type) noexcept {
    switch (static_cast<int>(type)) {
        case ncclFloat32: {
            float value = 0;
            std::memcpy(&value, scalar, sizeof(value));
            return value;
        }
        case ncclFloat16: {
            _Float16 value = 0;
            std::memcpy(&value, scalar, sizeof(value));
            return static_cast<float>(value);
        }
        case ncclBfloat16: {
            uint16_t bits = 0;
            std::memcpy(&bits, scalar, sizeof(bits));
            const uint32_t wide = static_cast<uint32_t>(bits) << 16;
            float value = 0;
            std::memcpy(&value, &wide, sizeof(value));
            return value;
        }
        default:
            return 1.0f;  // of a type that is never compressed
    }
}

}  // namespace

// For calls that need the communicator whole: ends the function when its creation is not done.
#define SLIMWIRE_AWAIT(creation, comm)                                        \
    if (const ncclResult_t made = creation(*rt, comm); made != ncclSuccess) { \
        return made;                                                          \
    }

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGroupStart() {
    SLIMWIRE_ENTER(kGroups, GroupStart)
    const ncclResult_t result = forward(nccl->GroupStart);
    if (result == ncclSuccess) {
        group_started(*nccl);
    }
    return result;
}

ncclResult_t ncclGroupEnd() {
    SLIMWIRE_ENTER(kGroups, GroupEnd)
    return group_end(*rt, *nccl);
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
    SLIMWIRE_ENTER(kGroups, GroupSimulateEnd, simInfo)
    const ncclResult_t result = forward(nccl->GroupSimulateEnd, simInfo);
    group_dropped(*nccl);
    return result;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
    SLIMWIRE_ENTER(kMakes, GetUniqueId, uniqueId)
    const ncclResult_t result = forward(nccl->GetUniqueId, uniqueId);
    if (result == ncclSuccess) {
        unique_id_made(*rt, uniqueId);
    }
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
    SLIMWIRE_ENTER(kMakes, CommInitRank, comm, nranks, commId, rank)
    const ncclResult_t result = forward(nccl->CommInitRank, comm, nranks, commId, rank);
    return rank_created(*rt, *nccl, result, comm, nranks, rank, commId);
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config) {
    SLIMWIRE_ENTER(kMakes, CommInitRankConfig, comm, nranks, commId, rank, config)
    const ncclResult_t result =
        forward(nccl->CommInitRankConfig, comm, nranks, commId, rank, config);
    return rank_created(*rt, *nccl, result, comm, nranks, rank, commId, config);
}

// Every id may carry an address; the first one's is where all ranks meet.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm,
                                      int nranks,
                                      int myrank,
                                      int nId,
                                      ncclUniqueId* commIds,
                                      ncclConfig_t* config) {
    SLIMWIRE_ENTER(kMakes, CommInitRankScalable, newcomm, nranks, myrank, nId, commIds, config)
    const ncclResult_t result =
        forward(nccl->CommInitRankScalable, newcomm, nranks, myrank, nId, commIds, config);
    return result == ncclSuccess || result == ncclInProgress
               ? rank_created(*rt, *nccl, result, newcomm, nranks, myrank, commIds[0], config)
               : result;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
    SLIMWIRE_ENTER(kMakes, CommInitAll, comm, ndev, devlist)
    const ncclResult_t result = forward(nccl->CommInitAll, comm, ndev, devlist);
    return all_created(*rt, *nccl, result, comm, ndev);
}

ncclResult_t ncclCommSplit(
    ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
    SLIMWIRE_ENTER(comm, CommSplit, comm, color, key, newcomm, config)
    SLIMWIRE_AWAIT(await_parent, comm)
    const PartBegun part = split_begins(*rt, comm, color, key);
    const ncclResult_t result = forward(nccl->CommSplit, comm, color, key, newcomm, config);
    return color == NCCL_SPLIT_NOCOLOR
               ? result
               : part_created(*rt, *nccl, result, comm, newcomm, part, config);
}

ncclResult_t ncclCommShrink(ncclComm_t comm,
                            int* excludeRanksList,
                            int excludeRanksCount,
                            ncclComm_t* newcomm,
                            ncclConfig_t* config,
                            int shrinkFlags) {
    SLIMWIRE_ENTER(comm, CommShrink, comm, excludeRanksList, excludeRanksCount, newcomm, config,
                   shrinkFlags)
    SLIMWIRE_AWAIT(await_parent, comm)
    const Beside beside = comm_shrinking(*rt, comm, shrinkFlags);
    const PartBegun part = shrink_begins(
        *rt, comm, {excludeRanksList, static_cast<size_t>(std::max(excludeRanksCount, 0))});
    const ncclResult_t result = forward(nccl->CommShrink, comm, excludeRanksList, excludeRanksCount,
                                        newcomm, config, shrinkFlags);
    await(beside);
    return part_created(*rt, *nccl, result, comm, newcomm, part, config);
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
    SLIMWIRE_ENTER(comm, CommGetUniqueId, comm, uniqueId)
    SLIMWIRE_AWAIT(await_creation, comm)
    const ncclResult_t result = forward(nccl->CommGetUniqueId, comm, uniqueId);
    if (result == ncclSuccess) {
        grow_id_made(*rt, comm, uniqueId);
    }
    return result;
}

// Ranks that join have an id and no communicator; those that were there have the communicator, and
// one of them the id.
ncclResult_t ncclCommGrow(ncclComm_t comm,
                          int nRanks,
                          const ncclUniqueId* uniqueId,
                          int rank,
                          ncclComm_t* newcomm,
                          ncclConfig_t* config) {
    SLIMWIRE_ENTER(comm, CommGrow, comm, nRanks, uniqueId, rank, newcomm, config)
    if (comm != nullptr) {
        SLIMWIRE_AWAIT(await_parent, comm)
    }
    const ncclResult_t result =
        forward(nccl->CommGrow, comm, nRanks, uniqueId, rank, newcomm, config);
    if (result != ncclSuccess && result != ncclInProgress) {
        return result;
    }
    return comm != nullptr
               ? grown(*rt, *nccl, result, comm, newcomm, uniqueId, config)
               : rank_created(*rt, *nccl, result, newcomm, nRanks, rank, *uniqueId, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    SLIMWIRE_ENTER(comm, CommFinalize, comm)
    SLIMWIRE_AWAIT(await_creation, comm)
    comm_finalizing(*rt, comm);
    return forward(nccl->CommFinalize, comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    SLIMWIRE_ENTER(comm, CommDestroy, comm)
    (void)comm_ending(*rt, comm, false);
    return forward(nccl->CommDestroy, comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    SLIMWIRE_ENTER(comm, CommAbort, comm)
    const Beside beside = comm_ending(*rt, comm, true);
    const ncclResult_t result = forward(nccl->CommAbort, comm);
    comm_aborted(*rt, beside);
    return result;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
    SLIMWIRE_ENTER(comm, CommRevoke, comm, revokeFlags)
    const Beside beside = comm_revoking(*rt, comm, revokeFlags);
    const ncclResult_t result = forward(nccl->CommRevoke, comm, revokeFlags);
    await(beside);
    return result;
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
    SLIMWIRE_ENTER(comm, CommSuspend, comm, flags)
    SLIMWIRE_AWAIT(await_creation, comm)
    const ncclResult_t result = forward(nccl->CommSuspend, comm, flags);
    if (result != ncclSuccess && result != ncclInProgress) {
        return result;
    }
    const ncclResult_t own = comm_suspended(*rt, comm, flags);
    return own != ncclSuccess ? own : result;
}

ncclResult_t ncclCommResume(ncclComm_t comm) {
    SLIMWIRE_ENTER(comm, CommResume, comm)
    SLIMWIRE_AWAIT(await_creation, comm)
    if (const ncclResult_t own = comm_resuming(*rt, comm); own != ncclSuccess) {
        return own;
    }
    const ncclResult_t result = forward(nccl->CommResume, comm);
    if (result != ncclSuccess && result != ncclInProgress) {
        return result;
    }
    const ncclResult_t own = comm_resumed(*rt, comm);
    return own != ncclSuccess ? own : result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
    SLIMWIRE_ENTER(comm, CommGetAsyncError, comm, asyncError)
    if (asyncError != nullptr) {
        if (const auto state = creation_state(comm); state.has_value()) {
            *asyncError = *state;
            return ncclSuccess;
        }
    }
    const ncclResult_t result = forward(nccl->CommGetAsyncError, comm, asyncError);
    if (result == ncclSuccess && *asyncError == ncclSuccess) {
        windows_ready(*rt, comm);
        *asyncError = exchange_state(*rt, comm);
    }
    return result;
}

const char* ncclGetLastError(ncclComm_t comm) {
    const Entry entry = enter(comm, __builtin_return_address(0));
    if (entry.nccl == nullptr || (entry.ours && !Runtime::last_error().empty())) {
        return Runtime::last_error().c_str();
    }
    return entry.nccl->GetLastError != nullptr ? entry.nccl->GetLastError(comm) : "";
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op,
                                      void* scalar,
                                      ncclDataType_t datatype,
                                      ncclScalarResidence_t residence,
                                      ncclComm_t comm) {
    SLIMWIRE_ENTER(comm, RedOpCreatePreMulSum, op, scalar, datatype, residence, comm)
    SLIMWIRE_AWAIT(await_creation, comm)
    const ncclResult_t result =
        forward(nccl->RedOpCreatePreMulSum, op, scalar, datatype, residence, comm);
    Communicator* state = result == ncclSuccess ? rt->comms.find(comm) : nullptr;
    if (state != nullptr && known_dtype(datatype)) {
        PreMulScalar made;
        made.op = *op;
        made.dtype = static_cast<DType>(datatype);
        if (residence == ncclScalarDevice) {
            made.device = scalar;
        } else {
            made.value = scalar_value(scalar, datatype);
        }
        state->scalars.push_back(made);
    }
    return result;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    SLIMWIRE_ENTER(comm, RedOpDestroy, op, comm)
    if (Communicator* state = rt->comms.find(comm); state != nullptr) {
        std::erase_if(state->scalars, [&](const PreMulScalar& scalar) { return scalar.op == op; });
    }
    return forward(nccl->RedOpDestroy, op, comm);
}

ncclResult_t ncclCommWindowRegister(
    ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags) {
    SLIMWIRE_ENTER(comm, CommWindowRegister, comm, buff, size, win, winFlags)
    SLIMWIRE_AWAIT(await_creation, comm)
    const ncclResult_t result = forward(nccl->CommWindowRegister, comm, buff, size, win, winFlags);
    window_registered(*rt, comm, {static_cast<std::byte*>(buff), size, nullptr, win}, winFlags,
                      result);
    return result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
    SLIMWIRE_ENTER(comm, CommWindowDeregister, comm, win)
    window_deregistered(*rt, comm, win);
    return forward(nccl->CommWindowDeregister, comm, win);
}

}  // extern "C"
#pragma GCC visibility pop
