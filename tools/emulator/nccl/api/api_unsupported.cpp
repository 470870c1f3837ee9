// Exported functions of NCCL that cannot exist without a GPU: they say so.
// The emulator's counters are exported here, too.
#include <nccl_device.h>

#include "tools/emulator/nccl/api/api.h"
#include "tools/emulator/nccl/execution/group.h"
#include "tools/emulator/nccl/transport/transport.h"

namespace {

using slimwire::emu::find_communicator;

// Null communicators are a wrong argument, everything else is wrong usage.
ncclResult_t refuse(ncclComm_t comm, const char* function) noexcept {
    return slimwire::emu::guarded([=]() -> slimwire::Status {
        SLIMWIRE_TRY(slimwire::emu::group_error(find_communicator(comm, function).status()));
        return slimwire::emu::group_error(slimwire::emu::unsupported(function));
    });
}

ncclResult_t refuse(const char* function) noexcept {
    return slimwire::emu::guarded([=] { return slimwire::emu::unsupported(function); });
}

ncclTeam_t no_team(const char* function) noexcept {
    (void)refuse(function);
    return {0, 0, 0};
}

}  // namespace

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclDevCommCreate,
                     (ncclComm_t comm, ncclDevCommRequirements_t const*, ncclDevComm_t*)) {
    return refuse(comm, "ncclDevCommCreate");
}
SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, ncclDevComm_t const*)) {
    return refuse(comm, "ncclDevCommDestroy");
}
SLIMWIRE_NCCL_EXPORT(ncclTeam_t, ncclTeamWorld, (ncclComm_t)) {
    return no_team("ncclTeamWorld");
}
SLIMWIRE_NCCL_EXPORT(ncclTeam_t, ncclTeamLsa, (ncclComm_t)) {
    return no_team("ncclTeamLsa");
}
SLIMWIRE_NCCL_EXPORT(ncclTeam_t, ncclTeamRail, (ncclComm_t)) {
    return no_team("ncclTeamRail");
}
// Since 2.31; the mode of the first is an enumerator.
SLIMWIRE_NCCL_EXPORT(ncclTeam_t, ncclTeamCft, (ncclComm_t, int)) {
    return no_team("ncclTeamCft");
}
SLIMWIRE_NCCL_EXPORT(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t)) {
    return no_team("ncclTeamCftMultimem");
}
SLIMWIRE_NCCL_EXPORT(int, ncclTeamRankToWorld, (ncclComm_t, ncclTeam_t, int)) {
    (void)refuse("ncclTeamRankToWorld");
    return -1;
}
SLIMWIRE_NCCL_EXPORT(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t, int)) {
    (void)refuse("ncclTeamRankToLsa");
    return -1;
}
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclLsaBarrierCreateRequirement,
                     (ncclTeam_t, int, ncclLsaBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
    return refuse("ncclLsaBarrierCreateRequirement");
}
SLIMWIRE_NCCL_EXPORT(
    ncclResult_t,
    ncclGinBarrierCreateRequirement,
    (ncclComm_t comm, ncclTeam_t, int, ncclGinBarrierHandle_t*, ncclDevResourceRequirements_t*)) {
    return refuse(comm, "ncclGinBarrierCreateRequirement");
}
SLIMWIRE_NCCL_EXPORT(int, ncclLLA2ACalcSlots, (int, int)) {
    (void)refuse("ncclLLA2ACalcSlots");
    return 0;
}
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclLLA2ACreateRequirement,
                     (int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*)) {
    return refuse("ncclLLA2ACreateRequirement");
}

extern "C" __attribute__((visibility("default"))) void slimwire_emulator_counters(
    slimwire::EmulatorCounters* out);
extern "C" void slimwire_emulator_counters(slimwire::EmulatorCounters* out) {
    slimwire::emu::read_counters(out);
}
