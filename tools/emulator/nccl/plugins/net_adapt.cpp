#include "tools/emulator/nccl/plugins/net_adapt.h"

#include <algorithm>

#include "plugin/net/abi/net_v12.h"

namespace slimwire::emu {
namespace {

using net::NetV11;
using net::NetV12;

// A table has no place for a pointer of ours.
const NetV12* g_inner = nullptr;
NetV11 g_table = {};

ncclResult_t get_properties(int device, net::NetPropertiesV11* out) {
    net::NetPropertiesV12 from{};
    if (const ncclResult_t result = g_inner->get_properties(device, &from); result != ncclSuccess) {
        return result;
    }
    *out = {};
    out->name = from.name;
    out->pci_path = from.pci_path;
    out->guid = from.guid;
    out->ptr_support = from.ptr_support;
    out->reg_is_global = from.reg_is_global;
    out->force_flush = from.force_flush;
    out->speed_mbps = from.speed_mbps;
    out->port = from.port;
    out->latency_us = from.latency_us;
    out->max_comms = from.max_comms;
    out->max_recvs = from.max_recvs;
    out->device_type = from.device_type;
    out->device_version = from.device_version;
    out->max_p2p_bytes = from.max_p2p_bytes;
    out->max_coll_bytes = from.max_coll_bytes;
    out->max_multi_request_size = 1;
    const int devices = std::clamp(from.virtual_devices.count, 0, net::kNetMaxDevsPerNic);
    out->virtual_devices.count = devices;
    std::copy_n(from.virtual_devices.devices, devices, out->virtual_devices.devices);
    return ncclSuccess;
}

const NetV11* as_v11(const NetV12& of) {
    g_inner = &of;
    g_table = {};
    g_table.name = of.name;
    g_table.init = of.init;
    g_table.devices = of.devices;
    g_table.get_properties = get_properties;
    g_table.listen = of.listen;
    g_table.connect = of.connect;
    g_table.accept = of.accept;
    g_table.reg_mr = of.reg_mr;
    g_table.reg_mr_dma_buf = of.reg_mr_dma_buf;
    g_table.dereg_mr = of.dereg_mr;
    g_table.isend = of.isend;
    g_table.irecv = of.irecv;
    g_table.iflush = of.iflush;
    g_table.test = of.test;
    g_table.close_send = of.close_send;
    g_table.close_recv = of.close_recv;
    g_table.close_listen = of.close_listen;
    g_table.get_device_mr = of.get_device_mr;
    g_table.irecv_consumed = of.irecv_consumed;
    g_table.finalize = of.finalize;
    g_table.set_net_attr = of.set_net_attr;
    return &g_table;
}

}  // namespace

AdaptedNet adapt_net(const PluginLibrary& library) {
    const auto* const v12 = static_cast<const NetV12*>(library.symbol(net::kNetPluginSymbolV12));
    if (v12 != nullptr) {
        return {as_v11(*v12), 12};
    }
    return {static_cast<const NetV11*>(library.symbol(net::kNetPluginSymbolV11)), 11};
}

}  // namespace slimwire::emu
