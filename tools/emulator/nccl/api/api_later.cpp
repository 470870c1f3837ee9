// Exported functions that came after NCCL 2.28, but those that make communicators, and those that
// cannot exist without a GPU: what can be said of an emulated communicator is said, one-sided and
// device-side calls are refused. tests/abi/nccl_passed.txt lists them all.
#include <nccl_later.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tools/emulator/nccl/api/api.h"
#include "tools/emulator/nccl/execution/group.h"

namespace emu = slimwire::emu;
using slimwire::Code;
using slimwire::Status;

// As NCCL without its memory manager: nothing of device memory is counted.
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommMemStats,
                     (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value)) {
    int number = 0;
    std::memcpy(&number, &stat, sizeof number);  // programs may give any
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclCommMemStats";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(value, kName, "value"));
        if (number < ncclStatGpuMemSuspend || number > ncclStatGpuMemTotal) {
            return {Code::kInvalidArgument,
                    std::string(kName) + ": unknown statistic " + std::to_string(number)};
        }
        *value = number == ncclStatGpuMemSuspended && found->suspended() ? 1 : 0;
        return {};
    });
}

// The caller's structure is that of its own NCCL's header, maybe a shorter one.
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommQueryProperties,
                     (ncclComm_t comm, ncclCommProperties_t* properties)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclCommQueryProperties";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(properties, kName, "props"));
        constexpr ncclCommProperties_t kInitial = NCCL_COMM_PROPERTIES_INITIALIZER;
        if (properties->magic != kInitial.magic ||
            properties->size < offsetof(ncclCommProperties_t, rank)) {
            return {Code::kInvalidUsage,
                    std::string(kName) +
                        ": props is not as NCCL_COMM_PROPERTIES_INITIALIZER leaves it"};
        }
        ncclCommProperties_t said{};
        said.size = properties->size;
        said.magic = properties->magic;
        said.version = properties->version;
        said.rank = found->rank();
        said.nRanks = found->size();
        said.cudaDev = said.nvmlDev = found->device();
        std::memcpy(properties, &said, std::min(properties->size, sizeof said));
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclWinGetUserPtr,
                     (ncclComm_t comm, ncclWindow_t win, void** pointer)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclWinGetUserPtr";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(pointer, kName, "outUserPtr"));
        SLIMWIRE_TRY_ASSIGN(*pointer, found->registered(win));
        return {};
    });
}

// The emulator has none of NCCL's parameters.
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclParamGetAllParameterKeys,
                     (const char*** table, int* count)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(table, "ncclParamGetAllParameterKeys", "table"));
        SLIMWIRE_TRY(emu::require(count, "ncclParamGetAllParameterKeys", "tableLen"));
        static const char* none = nullptr;
        *table = &none;
        *count = 0;
        return {};
    });
}
SLIMWIRE_NCCL_EXPORT(void, ncclParamDumpAll, ()) {}

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
SLIMWIRE_REFUSED_BY(Team, ncclTeamWorld, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamLsa, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamRail, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamCft, {})
SLIMWIRE_REFUSED_BY(Team, ncclTeamCftMultimem, {})
SLIMWIRE_REFUSED_BY(int, ncclTeamRankToWorld, -1)
SLIMWIRE_REFUSED_BY(int, ncclTeamRankToLsa, -1)
SLIMWIRE_REFUSED_BY(int, ncclLLA2ACalcSlots, 0)
