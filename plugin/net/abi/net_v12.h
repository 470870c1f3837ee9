// NCCL's network plugin interface, version 12 (NCCL 2.30): our own declarations of its binary
// layout. A plugin exports a data object `ncclNetPlugin_v12` of type NetV12. Differences to version
// 11: rails and planes, wider virtual cards.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "plugin/net/abi/net_types.h"
#include "plugin/net/abi/net_v11.h"

namespace slimwire::net {

inline constexpr char kNetPluginSymbolV12[] = "ncclNetPlugin_v12";
inline constexpr int kNetMaxDevsPerNicV12 = 8;

struct NetVDevicePropertiesV12 {
    int count;
    int devices[kNetMaxDevsPerNicV12];
};

// As in version 11.
using NetCommConfigV12 = NetCommConfigV11;
using NetAttrV12 = NetAttrV11;

struct NetPropertiesV12 {
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
    NetVDevicePropertiesV12 virtual_devices;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request_size;
    int16_t rail_id;   // -1: not known
    int16_t plane_id;  // -1: not known
};

using NetV12 = NetTableWithContexts<NetPropertiesV12, NetVDevicePropertiesV12>;

static_assert(sizeof(NetV12) == 176 && sizeof(NetPropertiesV12) == 128);
static_assert(offsetof(NetPropertiesV12, virtual_devices) == 64 &&
              offsetof(NetPropertiesV12, max_p2p_bytes) == 104 &&
              offsetof(NetPropertiesV12, max_multi_request_size) == 120 &&
              offsetof(NetPropertiesV12, plane_id) == 126);
static_assert(offsetof(NetV12, isend) == 80 && offsetof(NetV12, make_vdevice) == 152 &&
              offsetof(NetV12, finalize) == 160 && offsetof(NetV12, set_net_attr) == 168);

}  // namespace slimwire::net
