// Exported functions that came after NCCL 2.28, but those that make communicators, and those that
// cannot exist without a GPU: all are refused. tests/abi/nccl_passed.txt lists them.
#include <nccl_later.h>

#include "tools/emulator/nccl/api/api.h"
#include "tools/emulator/nccl/execution/group.h"

namespace emu = slimwire::emu;
using slimwire::Status;

// Refused whatever the arguments are, which are not looked at; in a group so is the group.
template <class... Arguments>
static ncclResult_t refused(const char* name, const Arguments&...) {
    return emu::guarded([&]() -> Status { return emu::group_error(emu::unsupported(name)); });
}
#define SLIMWIRE_REFUSED(name)                        \
    SLIMWIRE_NCCL_EXPORT(ncclResult_t, name, (...)) { \
        return refused(#name);                        \
    }

#define SLIMWIRE_LIST(...) __VA_ARGS__
#define SLIMWIRE_NCCL_ONE_SIDED(name, operation, parameters, arguments, data)    \
    SLIMWIRE_NCCL_EXPORT(ncclResult_t, nccl##name,                               \
                         (SLIMWIRE_LIST parameters, ncclComm_t, cudaStream_t)) { \
        return refused("nccl" #name, SLIMWIRE_LIST arguments);                   \
    }
#include "collectives/call/nccl_api.def"

SLIMWIRE_REFUSED(ncclCommMemStats)
SLIMWIRE_REFUSED(ncclCommQueryProperties)
SLIMWIRE_REFUSED(ncclWinGetUserPtr)
SLIMWIRE_REFUSED(ncclParamGetAllParameterKeys)
SLIMWIRE_REFUSED(ncclParamBind)
SLIMWIRE_REFUSED(ncclParamGet)
SLIMWIRE_REFUSED(ncclParamGetParameter)
SLIMWIRE_REFUSED(ncclParamGetStr)
SLIMWIRE_REFUSED(ncclParamGetI8)
SLIMWIRE_REFUSED(ncclParamGetI16)
SLIMWIRE_REFUSED(ncclParamGetI32)
SLIMWIRE_REFUSED(ncclParamGetI64)
SLIMWIRE_REFUSED(ncclParamGetU8)
SLIMWIRE_REFUSED(ncclParamGetU16)
SLIMWIRE_REFUSED(ncclParamGetU32)
SLIMWIRE_REFUSED(ncclParamGetU64)
SLIMWIRE_REFUSED(ncclSetEncryption)

SLIMWIRE_REFUSED(ncclGetLsaDevicePointer)
SLIMWIRE_REFUSED(ncclGetLsaMultimemDevicePointer)
SLIMWIRE_REFUSED(ncclGetMultimemDevicePointer)
SLIMWIRE_REFUSED(ncclGetPeerDevicePointer)
SLIMWIRE_REFUSED(ncclGinInboxA2ACreateRequirement)
SLIMWIRE_REFUSED(ncclGinOutboxCreateRequirement)
SLIMWIRE_REFUSED(ncclGetCftDeviceLeInfo)
SLIMWIRE_REFUSED(ncclGetMultimemDeviceLeInfo)
SLIMWIRE_REFUSED(ncclGetPeerDeviceLeInfo)
SLIMWIRE_REFUSED(ncclDevCommCreate)
SLIMWIRE_REFUSED(ncclDevCommDestroy)
SLIMWIRE_REFUSED(ncclLsaBarrierCreateRequirement)
SLIMWIRE_REFUSED(ncclGinBarrierCreateRequirement)
SLIMWIRE_REFUSED(ncclLLA2ACreateRequirement)

// Those that return no code say it by a team of nobody and numbers that are none.
struct Team {
    int ranks, rank, stride;
};
#define SLIMWIRE_REFUSED_BY(result, name, value) \
    SLIMWIRE_NCCL_EXPORT(result, name, (...)) {  \
        (void)refused(#name);                    \
        return value;                            \
    }
SLIMWIRE_NCCL_EXPORT(void, ncclParamDumpAll, ()) {}
SLIMWIRE_REFUSED_BY(Team, ncclTeamWorld, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamLsa, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamRail, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamCft, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamCftMultimem, {})
SLIMWIRE_REFUSED_BY(int, ncclTeamRankToWorld, -1)
SLIMWIRE_REFUSED_BY(int, ncclTeamRankToLsa, -1)
SLIMWIRE_REFUSED_BY(int, ncclLLA2ACalcSlots, 0)
