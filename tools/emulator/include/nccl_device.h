// Stand-in for the host side of NCCL 2.28.9's device interface: the requirement structs and the
// exported functions of nccl_device.h, with the real layouts. Kernels' side of it needs a GPU and
// is not here. C (with stdbool) and C++.
#ifndef SLIMWIRE_EMULATOR_NCCL_DEVICE_H_
#define SLIMWIRE_EMULATOR_NCCL_DEVICE_H_

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclDevComm ncclDevComm_t;
typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

typedef struct ncclTeam {
    int nRanks, rank, stride;
} ncclTeam_t;

typedef struct ncclMultimemHandle {
    void* mcBasePtr;
} ncclMultimemHandle_t;

typedef struct ncclLsaBarrierHandle {
    ncclDevResourceHandle_t bufHandle;
    int nBarriers;
} ncclLsaBarrierHandle_t;

typedef struct ncclGinBarrierHandle {
    ncclGinSignal_t signal0;
    ncclDevResourceHandle_t bufHandle;
} ncclGinBarrierHandle_t;

typedef struct ncclLLA2AHandle {
    ncclDevResourceHandle_t bufHandle;
    uint32_t nSlots;
} ncclLLA2AHandle_t;

typedef struct ncclDevResourceRequirements {
    struct ncclDevResourceRequirements* next;
    size_t bufferSize, bufferAlign;
    ncclDevResourceHandle_t* outBufferHandle;
    int ginSignalCount;
    int ginCounterCount;
    ncclGinSignal_t* outGinSignalStart;
    ncclGinCounter_t* outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
    struct ncclTeamRequirements* next;
    ncclTeam_t team;
    bool multimem;
    ncclMultimemHandle_t* outMultimemHandle;
} ncclTeamRequirements_t;

typedef struct ncclDevCommRequirements {
    ncclDevResourceRequirements_t* resourceRequirementsList;
    ncclTeamRequirements_t* teamRequirementsList;
    bool lsaMultimem;
    int barrierCount;
    int lsaBarrierCount;
    int railGinBarrierCount;
    int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
    bool ginForceEnable;
    int ginContextCount;
    int ginSignalCount;
    int ginCounterCount;
} ncclDevCommRequirements_t;

#define SLIMWIRE_NCCL_FUNCTION(result, name, parameters) \
    result name parameters;                              \
    result p##name parameters

SLIMWIRE_NCCL_FUNCTION(ncclResult_t,
                       ncclDevCommCreate,
                       (ncclComm_t comm,
                        ncclDevCommRequirements_t const* requirements,
                        ncclDevComm_t* outDevComm));
SLIMWIRE_NCCL_FUNCTION(ncclResult_t,
                       ncclDevCommDestroy,
                       (ncclComm_t comm, ncclDevComm_t const* devComm));
SLIMWIRE_NCCL_FUNCTION(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm));
SLIMWIRE_NCCL_FUNCTION(ncclTeam_t, ncclTeamLsa, (ncclComm_t comm));
SLIMWIRE_NCCL_FUNCTION(ncclTeam_t, ncclTeamRail, (ncclComm_t comm));
SLIMWIRE_NCCL_FUNCTION(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank));
SLIMWIRE_NCCL_FUNCTION(int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank));
SLIMWIRE_NCCL_FUNCTION(ncclResult_t,
                       ncclLsaBarrierCreateRequirement,
                       (ncclTeam_t team,
                        int nBarriers,
                        ncclLsaBarrierHandle_t* outHandle,
                        ncclDevResourceRequirements_t* outReq));
SLIMWIRE_NCCL_FUNCTION(ncclResult_t,
                       ncclGinBarrierCreateRequirement,
                       (ncclComm_t comm,
                        ncclTeam_t team,
                        int nBarriers,
                        ncclGinBarrierHandle_t* outHandle,
                        ncclDevResourceRequirements_t* outReq));
SLIMWIRE_NCCL_FUNCTION(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize));
SLIMWIRE_NCCL_FUNCTION(
    ncclResult_t,
    ncclLLA2ACreateRequirement,
    (int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle, ncclDevResourceRequirements_t* outReq));

#undef SLIMWIRE_NCCL_FUNCTION

#ifdef __cplusplus
}
#endif

#endif  // SLIMWIRE_EMULATOR_NCCL_DEVICE_H_
