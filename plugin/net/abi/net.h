// NCCL's network plugin interface, versions 8 (NCCL 2.20), 9 (2.24), 10 (2.26), 11 (2.28) and 12
// (2.30): our own declarations of its binary layout. A plugin exports data objects
// `ncclNetPlugin_v8` of type NetV8 to `ncclNetPlugin_v12` of type NetV12. Version 11 and 12 are
// read by the emulator's NCCL, which speaks them between nodes; slimwire's own plugin implements
// all.
//
// Thread contract of a table: every call returns at once; isend and irecv may give back a null
// request ("try again"), connect and accept a null object ("not yet"). A receive may be posted
// larger than the message that arrives; messages of one connection arrive in the order they were
// sent.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

inline constexpr char kNetPluginSymbolV8[] = "ncclNetPlugin_v8";
inline constexpr char kNetPluginSymbolV9[] = "ncclNetPlugin_v9";
inline constexpr char kNetPluginSymbolV10[] = "ncclNetPlugin_v10";
inline constexpr char kNetPluginSymbolV11[] = "ncclNetPlugin_v11";
inline constexpr char kNetPluginSymbolV12[] = "ncclNetPlugin_v12";

// --- Properties of a device

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

// From version 9 on: a flush, virtual cards, largest messages.
template <int kMaxDevsPerNic>
struct NetVDeviceProperties {
    int count;
    int devices[kMaxDevsPerNic];
};
template <int kMaxDevsPerNic>
struct NetProperties {
    char* name;
    char* pci_path;
    uint64_t guid;
    int ptr_support;
    int reg_is_global;
    int force_flush;
    int speed_mbps;
    int port;
    float latency_us;
    int max_comms;
    int max_recvs;
    NetDeviceType device_type;
    int device_version;
    NetVDeviceProperties<kMaxDevsPerNic> virtual_devices;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
};
using NetPropertiesV9 = NetProperties<4>;
using NetPropertiesV10 = NetPropertiesV9;

struct NetPropertiesV11 : NetPropertiesV9 {
    int max_multi_request_size;
};
struct NetPropertiesV12 : NetProperties<8> {
    int max_multi_request_size;
    int16_t rail_id;   // -1: not known
    int16_t plane_id;  // -1: not known
};

static_assert(sizeof(NetPropertiesV8) == 64 && offsetof(NetPropertiesV8, speed_mbps) == 32 &&
              offsetof(NetPropertiesV8, device_version) == 56);
static_assert(sizeof(NetPropertiesV9) == 104 && offsetof(NetPropertiesV9, force_flush) == 32 &&
              offsetof(NetPropertiesV9, virtual_devices) == 64 &&
              offsetof(NetPropertiesV9, max_p2p_bytes) == 88);
static_assert(sizeof(NetPropertiesV11) == 112 && sizeof(NetPropertiesV12) == 128 &&
              offsetof(NetProperties<8>, max_p2p_bytes) == 104);

// --- Tables; plugin.net_tables holds their layout against NCCL's

struct NetCommConfigV11 {
    int traffic_class;  // -1: not set
};
using NetCommConfigV10 = NetCommConfigV11;
using NetCommConfigV12 = NetCommConfigV11;

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

// Functions that all versions have at the same places.
template <class Properties, class Init, class Listen, class Connect, class Isend, class Irecv>
struct NetTable {
    const char* name;
    Init init;
    NetDevices devices;
    ncclResult_t (*get_properties)(int device, Properties* properties);
    Listen listen;
    Connect connect;
    NetAccept accept;
    NetRegMr reg_mr;
    NetRegMrDmaBuf reg_mr_dma_buf;
    NetDeregMr dereg_mr;
    Isend isend;
    Irecv irecv;
    NetIflush iflush;
    NetTest test;
    NetClose close_send, close_recv, close_listen;
    NetGetDeviceMr get_device_mr;
    NetIrecvConsumed irecv_consumed;
};

// Up to version 10 there is no context: init is called once.
using NetListen = ncclResult_t (*)(int device, void* handle, void** listen_comm);
using NetConnect = ncclResult_t (*)(int device,
                                    void* handle,
                                    void** send_comm,
                                    NetDeviceHandle** device_handle);
template <class Properties, class Size>
using NetUnprofiledTable = NetTable<Properties,
                                    ncclResult_t (*)(DebugLogger log),
                                    NetListen,
                                    NetConnect,
                                    NetIsend<Size>,
                                    NetIrecv<Size>>;
using NetV8 = NetUnprofiledTable<NetPropertiesV8, int>;

struct NetV9 : NetUnprofiledTable<NetPropertiesV9, size_t> {
    ncclResult_t (*make_vdevice)(int* device, NetVDeviceProperties<4>* properties);
};

// The configuration comes with connect.
struct NetV10 : NetTable<NetPropertiesV10,
                         ncclResult_t (*)(DebugLogger log, ProfilerCallback profiler),
                         NetListen,
                         ncclResult_t (*)(int device,
                                          NetCommConfigV10* config,
                                          void* handle,
                                          void** send_comm,
                                          NetDeviceHandle** device_handle),
                         NetIsendProfiled,
                         NetIrecvProfiled> {
    ncclResult_t (*make_vdevice)(int* device, NetVDeviceProperties<4>* properties);
};

using NetInitWithContext = ncclResult_t (*)(void** context,
                                            uint64_t comm_id,
                                            NetCommConfigV11* config,
                                            DebugLogger log,
                                            ProfilerCallback profiler);
using NetListenWithContext = ncclResult_t (*)(void* context,
                                              int device,
                                              void* handle,
                                              void** listen_comm);
using NetConnectWithContext = ncclResult_t (*)(
    void* context, int device, void* handle, void** send_comm, NetDeviceHandle** device_handle);

// Version 12 differs in the properties alone: rails and planes, wider virtual cards.
template <class Properties, int kMaxDevsPerNic>
struct NetTableWithContexts : NetTable<Properties,
                                       NetInitWithContext,
                                       NetListenWithContext,
                                       NetConnectWithContext,
                                       NetIsendProfiled,
                                       NetIrecvProfiled> {
    ncclResult_t (*make_vdevice)(int* device, NetVDeviceProperties<kMaxDevsPerNic>* properties);
    ncclResult_t (*finalize)(void* context);
    ncclResult_t (*set_net_attr)(void* context, NetAttrV11* attributes);
};
using NetV11 = NetTableWithContexts<NetPropertiesV11, 4>;
using NetV12 = NetTableWithContexts<NetPropertiesV12, 8>;

static_assert(sizeof(NetV8) == 152 && sizeof(NetV9) == 160 && sizeof(NetV10) == 160 &&
              sizeof(NetV11) == 176 && sizeof(NetV12) == 176);
static_assert(offsetof(NetV8, isend) == 80 && offsetof(NetV8, irecv_consumed) == 144);

}  // namespace slimwire::net
