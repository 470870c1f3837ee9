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
    NetDevices devices;
    ncclResult_t (*get_properties)(int device, NetPropertiesV10* properties);
    ncclResult_t (*listen)(int device, void* handle, void** listen_comm);
    ncclResult_t (*connect)(int device,
                            NetCommConfigV10* config,
                            void* handle,
                            void** send_comm,
                            NetDeviceHandle** device_handle);
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
    ncclResult_t (*make_vdevice)(int* device, NetVDevicePropertiesV10* properties);
};

static_assert(sizeof(NetV10) == 160 && sizeof(NetCommConfigV10) == 4);
static_assert(offsetof(NetV10, isend) == 80 && offsetof(NetV10, make_vdevice) == 152);

}  // namespace slimwire::net
