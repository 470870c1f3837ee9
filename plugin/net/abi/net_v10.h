// NCCL's network plugin interface, version 10 (NCCL 2.26): our own declarations of its binary
// layout. A plugin exports a data object `ncclNetPlugin_v10` of type NetV10. Differences to version
// 11: no context (init is called once), the configuration comes with connect.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"
#include "plugin/net/abi/net_v9.h"

namespace slimwire::net {

inline constexpr char kNetPluginSymbolV10[] = "ncclNetPlugin_v10";

// As in version 9.
using NetVDevicePropertiesV10 = NetVDevicePropertiesV9;
using NetPropertiesV10 = NetPropertiesV9;

struct NetCommConfigV10 {
    int traffic_class;  // -1: not set
};

struct NetV10 {
    const char* name;
    ncclResult_t (*init)(DebugLogger log, ProfilerCallback profiler);
    ncclResult_t (*devices)(int* count);
    ncclResult_t (*get_properties)(int device, NetPropertiesV10* properties);
    ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
    ncclResult_t (*connect)(int device,
                            NetCommConfigV10* config,
                            void* handle,
                            void** send_comm,
                            NetDeviceHandle** device_handle);
    ncclResult_t (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
    ncclResult_t (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** mhandle);
    ncclResult_t (*reg_mr_dma_buf)(
        void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd, void** mhandle);
    ncclResult_t (*dereg_mr)(void* comm, void* mhandle);
    ncclResult_t (*isend)(void* send_comm,
                          void* data,
                          size_t bytes,
                          int tag,
                          void* mhandle,
                          void* phandle,
                          void** request);
    ncclResult_t (*irecv)(void* recv_comm,
                          int count,
                          void** data,
                          size_t* bytes,
                          int* tags,
                          void** mhandles,
                          void** phandles,
                          void** request);
    ncclResult_t (*iflush)(
        void* recv_comm, int count, void** data, int* bytes, void** mhandles, void** request);
    ncclResult_t (*test)(void* request, int* done, int* bytes);
    ncclResult_t (*close_send)(void* send_comm);
    ncclResult_t (*close_recv)(void* recv_comm);
    ncclResult_t (*close_listen)(void* listen_comm);
    ncclResult_t (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
    ncclResult_t (*irecv_consumed)(void* recv_comm, int count, void* request);
    ncclResult_t (*make_vdevice)(int* device, NetVDevicePropertiesV10* properties);
};

static_assert(sizeof(NetV10) == 160 && sizeof(NetCommConfigV10) == 4);
static_assert(offsetof(NetV10, isend) == 80 && offsetof(NetV10, make_vdevice) == 152);

}  // namespace slimwire::net
