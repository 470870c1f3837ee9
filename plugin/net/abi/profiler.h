// NCCL's profiler plugin interface, versions 4 (NCCL 2.27), 5 (2.28) and 6 (2.29): our own
// declarations of its binary layout. A plugin exports a data object `ncclProfiler_v4`, `_v5` or
// `_v6`; NCCL looks for it in the net plugin's library too. One context for each communicator.
//
// Events have parents: group > collective or point-to-point > proxy operation > proxy step > what
// the net plugin starts through the callback that it got at init. `parent` is the handle that the
// profiler itself gave back for the parent's event (null where it asked for none). start_event and
// stop_event come from NCCL's calling threads and its progress threads and must not wait. Strings
// are constants of NCCL.
#pragma once

#include <nccl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr char kProfilerSymbolV4[] = "ncclProfiler_v4";
inline constexpr char kProfilerSymbolV5[] = "ncclProfiler_v5";
inline constexpr char kProfilerSymbolV6[] = "ncclProfiler_v6";

// Kinds of event: bits of the mask that init fills, and the type of a descriptor.
enum ProfilerEventType : int {
    kProfileGroup = 1 << 0,
    kProfileCollective = 1 << 1,
    kProfilePointToPoint = 1 << 2,
    kProfileProxyOperation = 1 << 3,
    kProfileProxyStep = 1 << 4,
    kProfileProxyControl = 1 << 5,
    kProfileKernelChannel = 1 << 6,
    kProfileNetPlugin = 1 << 7,
    kProfileGroupApi = 1 << 8,  // from version 5 on
    kProfileCollectiveApi = 1 << 9,
    kProfilePointToPointApi = 1 << 10,
    kProfileKernelLaunch = 1 << 11,
    kProfileCopyEngineCollective = 1 << 12,  // from version 6 on
    kProfileCopyEngineSync = 1 << 13,
    kProfileCopyEngineBatch = 1 << 14,
};

enum ProfilerEventState : int {
    kStateSendGpuWait = 8,
    kStateSendWait = 9,
    kStateRecvWait = 10,
    kStateRecvFlushWait = 11,
    kStateRecvGpuWait = 12,
    kStateControlIdle = 13,
    kStateControlActive = 14,
    kStateControlSleep = 15,
    kStateControlWakeup = 16,
    kStateControlAppend = 17,
    kStateControlAppendEnd = 18,
    kStateOperationInProgress = 19,
    kStateSendPeerWait = 20,
    kStateNetPluginUpdate = 21,
    kStateKernelStop = 22,
    kStateGroupStartApiStop = 23,
    kStateGroupEndApiStart = 24,
};

// What a net plugin asks of ProfilerCallback (its `type`).
enum ProfilerNetCall : int {
    kNetEventStart = 0,
    kNetEventStop = 1,
    kNetEventUpdate = 2,
    kNetEventUpdateAndStop = 3,
};

struct ProfiledCollectiveV4 {
    uint64_t sequence;
    const char* function;  // "AllReduce"
    const void* send_buffer;
    void* recv_buffer;
    size_t count;
    int root;
    const char* datatype;  // "ncclBfloat16"
    uint8_t channels;
    uint8_t warps;
    const char* algorithm;  // "RING"
    const char* protocol;   // "SIMPLE"
};

struct ProfiledCollectiveV5 {
    ProfiledCollectiveV4 v4;
    void* parent_group;
};

struct ProfiledPointToPointV4 {
    const char* function;  // "Send"
    void* buffer;
    const char* datatype;
    size_t count;
    int peer;
    uint8_t channels;
};

struct ProfiledPointToPointV5 {
    ProfiledPointToPointV4 v4;
    void* parent_group;
};

struct ProfiledProxyOperation {
    pid_t pid;  // of the process that asked for it
    uint8_t channel;
    int peer;
    int steps;
    int chunk_bytes;
    int is_send;
};

struct ProfiledProxyStep {
    int step;
};

struct ProfiledKernelChannel {
    uint8_t channel;
    uint64_t start_ns;  // of the GPU's timer
};

struct ProfiledNetPlugin {
    int64_t id;
    void* data;
};

struct ProfiledGroupApi {
    bool captured;
    int depth;
};

struct ProfiledCollectiveApi {
    const char* function;
    size_t count;
    const char* datatype;
    int root;
    void* stream;
    bool captured;
};

struct ProfiledPointToPointApi {
    const char* function;
    size_t count;
    const char* datatype;
    void* stream;
    bool captured;
};

struct ProfiledKernelLaunch {
    void* stream;
};

struct ProfiledCopyEngineCollective {
    uint64_t sequence;
    const char* function;
    const void* send_buffer;
    void* recv_buffer;
    size_t count;
    int root;
    const char* datatype;
    const char* sync_strategy;
    bool sync_in_batch;
    uint32_t batch_size;
    uint32_t batches;
    uint32_t copy_engine_sequence;
    void* stream;
};

struct ProfiledCopyEngineSync {
    bool complete;
    int ranks;
};

struct ProfiledCopyEngineBatch {
    int operations;
    size_t bytes;
    bool sync_inside;
};

struct ProfilerEventV4 {
    uint8_t type;  // ProfilerEventType
    void* parent;
    int rank;
    union {
        ProfiledCollectiveV4 collective;
        ProfiledPointToPointV4 point_to_point;
        ProfiledProxyOperation proxy_operation;
        ProfiledProxyStep proxy_step;
        ProfiledKernelChannel kernel_channel;
        ProfiledNetPlugin net_plugin;
    };
};

struct ProfilerEventV5 {
    uint64_t type;  // ProfilerEventType
    void* parent;
    int rank;
    union {
        ProfiledGroupApi group_api;
        ProfiledCollectiveApi collective_api;
        ProfiledPointToPointApi point_to_point_api;
        ProfiledKernelLaunch kernel_launch;
        ProfiledCollectiveV5 collective;
        ProfiledPointToPointV5 point_to_point;
        ProfiledProxyOperation proxy_operation;
        ProfiledProxyStep proxy_step;
        ProfiledKernelChannel kernel_channel;
        ProfiledNetPlugin net_plugin;
    };
};

struct ProfilerEventV6 {
    uint64_t type;  // ProfilerEventType
    void* parent;
    int rank;
    union {
        ProfiledGroupApi group_api;
        ProfiledCollectiveApi collective_api;
        ProfiledPointToPointApi point_to_point_api;
        ProfiledKernelLaunch kernel_launch;
        ProfiledCollectiveV5 collective;
        ProfiledPointToPointV5 point_to_point;
        ProfiledProxyOperation proxy_operation;
        ProfiledProxyStep proxy_step;
        ProfiledKernelChannel kernel_channel;
        ProfiledNetPlugin net_plugin;
        ProfiledCopyEngineCollective copy_engine_collective;
        ProfiledCopyEngineSync copy_engine_sync;
        ProfiledCopyEngineBatch copy_engine_batch;
    };
};

// What record_event_state brings along; the same in all versions.
union ProfilerStateArguments {
    size_t proxy_step_bytes;
    int appended_operations;
    void* net_plugin_data;
    uint64_t kernel_channel_ns;
};

using ProfilerStopEvent = ncclResult_t (*)(void* event);
using ProfilerRecordEventState = ncclResult_t (*)(void* event,
                                                  ProfilerEventState state,
                                                  ProfilerStateArguments* arguments);
using ProfilerFinalize = ncclResult_t (*)(void* context);

struct ProfilerV4 {
    const char* name;
    ncclResult_t (*init)(void** context,
                         int* event_mask,
                         const char* comm_name,
                         uint64_t comm_id,
                         int nodes,
                         int ranks,
                         int rank,
                         DebugLogger log);
    ncclResult_t (*start_event)(void* context, void** event, ProfilerEventV4* descriptor);
    ProfilerStopEvent stop_event;
    ProfilerRecordEventState record_event_state;
    ProfilerFinalize finalize;
};

struct ProfilerV5 {
    const char* name;
    ncclResult_t (*init)(void** context,
                         uint64_t comm_id,
                         int* event_mask,
                         const char* comm_name,
                         int nodes,
                         int ranks,
                         int rank,
                         DebugLogger log);
    ncclResult_t (*start_event)(void* context, void** event, ProfilerEventV5* descriptor);
    ProfilerStopEvent stop_event;
    ProfilerRecordEventState record_event_state;
    ProfilerFinalize finalize;
};

struct ProfilerV6 {
    const char* name;
    ncclResult_t (*init)(void** context,
                         uint64_t comm_id,
                         int* event_mask,
                         const char* comm_name,
                         int nodes,
                         int ranks,
                         int rank,
                         DebugLogger log);
    ncclResult_t (*start_event)(void* context, void** event, ProfilerEventV6* descriptor);
    ProfilerStopEvent stop_event;
    ProfilerRecordEventState record_event_state;
    ProfilerFinalize finalize;
};

static_assert(sizeof(ProfilerV4) == 48 && sizeof(ProfilerV5) == 48 && sizeof(ProfilerV6) == 48);
static_assert(sizeof(ProfilerEventV4) == 104 && sizeof(ProfilerEventV5) == 112 &&
              sizeof(ProfilerEventV6) == 112 && sizeof(ProfilerStateArguments) == 8);
static_assert(offsetof(ProfilerEventV4, collective) == 24 &&
              offsetof(ProfilerEventV5, collective) == 24);
static_assert(offsetof(ProfiledCollectiveV4, datatype) == 48 &&
              offsetof(ProfiledCollectiveV4, algorithm) == 64 &&
              offsetof(ProfiledCollectiveV5, parent_group) == 80);
static_assert(offsetof(ProfiledPointToPointV5, parent_group) == 40);
static_assert(offsetof(ProfiledProxyOperation, is_send) == 20);
static_assert(offsetof(ProfiledCopyEngineCollective, stream) == 80);

}  // namespace slimwire::net
