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
    NetDevices devices;
    ncclResult_t (*get_properties)(int device, NetPropertiesV8* properties);
    ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
    ncclResult_t (*connect)(int device,
                            void* handle,
                            void** send_comm,
                            NetDeviceHandle** device_handle);
    NetAccept accept;
    NetRegMr reg_mr;
    NetRegMrDmaBuf reg_mr_dma_buf;
    NetDeregMr dereg_mr;
    NetIsend<int> isend;
    NetIrecv<int> irecv;
    NetIflush iflush;
    NetTest test;
    NetClose close_send, close_recv, close_listen;
    NetGetDeviceMr get_device_mr;
    NetIrecvConsumed irecv_consumed;
};

static_assert(sizeof(NetV8) == 152 && sizeof(NetPropertiesV8) == 64);
static_assert(offsetof(NetPropertiesV8, speed_mbps) == 32 &&
              offsetof(NetPropertiesV8, device_version) == 56);
static_assert(offsetof(NetV8, isend) == 80 && offsetof(NetV8, irecv_consumed) == 144);

}  // namespace slimwire::net
