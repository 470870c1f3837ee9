// NCCL's network plugin interface, version 8 (NCCL 2.20): our own declarations of its binary
// layout. A plugin exports a data object `ncclNetPlugin_v8` of type NetV8. Differences to version
// 11: no context (init is called once), sizes are int, no properties for virtual devices and
// limits.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr char kNetPluginSymbolV8[] = "ncclNetPlugin_v8";

struct NetPropertiesV8 {
    char* name;
    char* pci_path;  // null for a virtual card
    uint64_t guid;
    int ptr_support;  // mask of PtrSupport
    int reg_is_global;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_recvs;  // grouped receives
    NetDeviceType device_type;
    int device_version;
};

struct NetV8 {
    const char* name;
    ncclResult_t (*init)(DebugLogger log);
    ncclResult_t (*devices)(int* count);
    ncclResult_t (*get_properties)(int device, NetPropertiesV8* properties);
    ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
    ncclResult_t (*connect)(int device,
                            void* handle,
                            void** send_comm,
                            NetDeviceHandle** device_handle);
    ncclResult_t (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** device_handle);
    ncclResult_t (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** mhandle);
    ncclResult_t (*reg_mr_dma_buf)(
        void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd, void** mhandle);
    ncclResult_t (*dereg_mr)(void* comm, void* mhandle);
    ncclResult_t (*isend)(
        void* send_comm, void* data, int bytes, int tag, void* mhandle, void** request);
    ncclResult_t (*irecv)(void* recv_comm,
                          int count,
                          void** data,
                          int* bytes,
                          int* tags,
                          void** mhandles,
                          void** request);
    ncclResult_t (*iflush)(
        void* recv_comm, int count, void** data, int* bytes, void** mhandles, void** request);
    ncclResult_t (*test)(void* request, int* done, int* bytes);
    ncclResult_t (*close_send)(void* send_comm);
    ncclResult_t (*close_recv)(void* recv_comm);
    ncclResult_t (*close_listen)(void* listen_comm);
    ncclResult_t (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
    ncclResult_t (*irecv_consumed)(void* recv_comm, int count, void* request);
};

static_assert(sizeof(NetV8) == 152 && sizeof(NetPropertiesV8) == 64);
static_assert(offsetof(NetPropertiesV8, speed_mbps) == 32 &&
              offsetof(NetPropertiesV8, device_version) == 56);
static_assert(offsetof(NetV8, isend) == 80 && offsetof(NetV8, irecv_consumed) == 144);

}  // namespace slimwire::net
