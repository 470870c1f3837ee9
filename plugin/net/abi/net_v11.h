// NCCL's network plugin interface, version 11 (NCCL 2.28): our own declarations of its binary
// layout. A plugin exports a data object `ncclNetPlugin_v11` of type NetV11. Read by the emulator's
// NCCL, which speaks it between nodes, and by slimwire's own plugin, which implements it.
//
// Thread contract of the table: every call returns at once; isend and irecv may give back a null
// request ("try again"), connect and accept a null object ("not yet"). A receive may be posted
// larger than the message that arrives; messages of one connection arrive in the order they were
// sent.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr int kNetMaxDevsPerNic = 4;
inline constexpr char kNetPluginSymbolV11[] = "ncclNetPlugin_v11";

struct NetVDevicePropertiesV11 {
    int count;
    int devices[kNetMaxDevsPerNic];
};

struct NetCommConfigV11 {
    int traffic_class;  // -1: not set
};

struct NetPropertiesV11 {
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
    NetVDevicePropertiesV11 virtual_devices;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request_size;
};

struct NetCommAttrV11 {
    int32_t max_concurrent_peers;
    int32_t min_concurrent_peers;
    int32_t max_flows_per_peer;
    int32_t min_flows_per_peer;
};

struct NetAttrV11 {
    NetCommAttrV11 send;
    NetCommAttrV11 recv;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
};

// Version 12 differs in the properties alone.
template <class Properties, class VDeviceProperties>
struct NetTableWithContexts {
    const char* name;
    ncclResult_t (*init)(void** context,
                         uint64_t comm_id,
                         NetCommConfigV11* config,
                         DebugLogger log,
                         ProfilerCallback profiler);
    NetDevices devices;
    ncclResult_t (*get_properties)(int device, Properties* properties);
    ncclResult_t (*listen)(void* context, int device, void* handle, void** listen_comm);
    ncclResult_t (*connect)(
        void* context, int device, void* handle, void** send_comm, NetDeviceHandle** device_handle);
    NetAccept accept;
    NetRegMr reg_mr;
    NetRegMrDmaBuf reg_mr_dma_buf;
    NetDeregMr dereg_mr;
    NetIsendProfiled isend;
    NetIrecvProfiled irecv;
    NetIflush iflush;
    NetTest test;
    NetClose close_send, close_recv, close_listen;
    NetGetDeviceMr get_device_mr;
    NetIrecvConsumed irecv_consumed;
    ncclResult_t (*make_vdevice)(int* device, VDeviceProperties* properties);
    ncclResult_t (*finalize)(void* context);
    ncclResult_t (*set_net_attr)(void* context, NetAttrV11* attributes);
};
using NetV11 = NetTableWithContexts<NetPropertiesV11, NetVDevicePropertiesV11>;

static_assert(sizeof(NetV11) == 176 && sizeof(NetPropertiesV11) == 112);

}  // namespace slimwire::net
