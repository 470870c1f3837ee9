// NCCL's network plugin interface, version 9 (NCCL 2.24): our own declarations of its binary
// layout. A plugin exports a data object `ncclNetPlugin_v9` of type NetV9. Differences to version
// 11: no context (init is called once), no profiler.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr char kNetPluginSymbolV9[] = "ncclNetPlugin_v9";
inline constexpr int kNetMaxDevsPerNicV9 = 4;

struct NetVDevicePropertiesV9 {
    int count;
    int devices[kNetMaxDevsPerNicV9];
};

struct NetPropertiesV9 {
    char* name;
    char* pci_path;  // null for a virtual card
    uint64_t guid;
    int ptr_support;  // mask of PtrSupport
    int reg_is_global;
    int force_flush;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_recvs;  // grouped receives
    NetDeviceType device_type;
    int device_version;
    NetVDevicePropertiesV9 virtual_devices;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
};

struct NetV9 {
    const char* name;
    ncclResult_t (*init)(DebugLogger log);
    NetDevices devices;
    ncclResult_t (*get_properties)(int device, NetPropertiesV9* properties);
    ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
    ncclResult_t (*connect)(int device,
                            void* handle,
                            void** send_comm,
                            NetDeviceHandle** device_handle);
    NetAccept accept;
    NetRegMr reg_mr;
    NetRegMrDmaBuf reg_mr_dma_buf;
    NetDeregMr dereg_mr;
    NetIsend<size_t> isend;
    NetIrecv<size_t> irecv;
    NetIflush iflush;
    NetTest test;
    NetClose close_send, close_recv, close_listen;
    NetGetDeviceMr get_device_mr;
    NetIrecvConsumed irecv_consumed;
    ncclResult_t (*make_vdevice)(int* device, NetVDevicePropertiesV9* properties);
};

static_assert(sizeof(NetV9) == 160 && sizeof(NetPropertiesV9) == 104);
static_assert(offsetof(NetPropertiesV9, force_flush) == 32 &&
              offsetof(NetPropertiesV9, virtual_devices) == 64 &&
              offsetof(NetPropertiesV9, max_p2p_bytes) == 88);
static_assert(offsetof(NetV9, isend) == 80 && offsetof(NetV9, make_vdevice) == 152);

}  // namespace slimwire::net
