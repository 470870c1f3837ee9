/* What NCCL added to its interface after 2.28, as far as slimwire follows it or the emulator has
   it; nccl.h is 2.28's. Names, values and layouts are NCCL's. Used by slimwire, the emulator and
   test programs; with a newer nccl.h this header adds nothing. */
#ifndef SLIMWIRE_EMULATOR_NCCL_LATER_H
#define SLIMWIRE_EMULATOR_NCCL_LATER_H

#include <nccl.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLIMWIRE_NCCL_LATER(name, ...) \
    ncclResult_t name(__VA_ARGS__);    \
    ncclResult_t p##name(__VA_ARGS__)
#define SLIMWIRE_NCCL_LIST(...) __VA_ARGS__

#if NCCL_VERSION_CODE < 22900
/* The id of a communicator that is about to grow, made by one of its ranks for the new ones. */
SLIMWIRE_NCCL_LATER(ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId* uniqueId);
/* Existing ranks pass their communicator and rank -1, the one that made the id also the id; new
   ranks pass no communicator, the id and their rank. */
SLIMWIRE_NCCL_LATER(ncclCommGrow,
                    ncclComm_t comm,
                    int nRanks,
                    const ncclUniqueId* uniqueId,
                    int rank,
                    ncclComm_t* newcomm,
                    ncclConfig_t* config);
#endif

#if NCCL_VERSION_CODE < 22907
/* A communicator that is not used for a while gives back its memory; all ranks call both. */
#define NCCL_SUSPEND_MEM 0x01
SLIMWIRE_NCCL_LATER(ncclCommSuspend, ncclComm_t comm, int flags);
SLIMWIRE_NCCL_LATER(ncclCommResume, ncclComm_t comm);
#endif

#if NCCL_VERSION_CODE < 22900
/* One-sided: into a window of the peer, which may wait for the signal that follows. */
typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;
#define SLIMWIRE_NCCL_ONE_SIDED(name, operation, parameters, arguments, data)       \
    SLIMWIRE_NCCL_LATER(nccl##name, SLIMWIRE_NCCL_LIST parameters, ncclComm_t comm, \
                        cudaStream_t stream);
#include "collectives/call/nccl_api.def"
#endif

#if NCCL_VERSION_CODE < 23100
/* An option for another vendor's library; NCCL itself does not look at it. */
typedef struct {
    int vendorId;
    int optionId;
} ncclConfigExtKey_t;
typedef union {
    int i;
    const char* s;
    void* raw;
} ncclConfigExtVal_t;
typedef struct ncclConfigExt {
    struct ncclConfigExt* next;
    ncclConfigExtKey_t key;
    ncclConfigExtVal_t val;
} ncclConfigExt_t;

/* Of one call; equal on all ranks. */
typedef struct ncclCollConfig_v23200 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    ncclConfigExt_t* ext;
    int minCTAs;
    int maxCTAs;
    int nvlsCTAs;
    int cgaClusterSize;
    const char* algSelection;
    int forceAlgSelection;
    int CTAPolicy;
    uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent; /* since 2.32; recorded when the call's kernel is launched */
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                       \
    {                                                                                     \
        sizeof(ncclCollConfig_t), 0xcafebeef, 23203, NULL, NCCL_CONFIG_UNDEF_INT,         \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NULL, 1, \
            NCCL_CONFIG_UNDEF_INT, 0, NULL                                                \
    }

#define SLIMWIRE_NCCL_COLLECTIVE(name, op, parameters, arguments, payload)                  \
    SLIMWIRE_NCCL_LATER(nccl##name##Config, SLIMWIRE_NCCL_LIST parameters, ncclComm_t comm, \
                        cudaStream_t stream, const ncclCollConfig_t* config);
#include "collectives/call/nccl_api.def"
#endif
#undef SLIMWIRE_NCCL_LIST
#undef SLIMWIRE_NCCL_LATER

#ifdef __cplusplus
}
#endif

#endif
