// The tables of all versions, made of calls.h: what is common is filled in here, so that a
// version's file holds what only that version has. Constant data: nothing runs when the library is
// loaded.
#pragma once

#include <algorithm>

#include "plugin/net/tables/calls.h"

namespace slimwire::net::tables {

// Each version has more fields than the one before.
template <class Properties>
ncclResult_t get_properties(int device, Properties* properties) noexcept {
    const WireDevice* const wire = device_properties(device);
    if (wire == nullptr) {
        return ncclInvalidArgument;
    }
    *properties = {};
    properties->name = const_cast<char*>(wire->name);
    properties->pci_path = const_cast<char*>(wire->pci_path);
    properties->guid = wire->guid;
    properties->ptr_support = kPtrHost;
    properties->reg_is_global = 0;  // a Memory belongs to its connection
    properties->speed_mbps = wire->speed_mbps;
    properties->port = wire->port;
    properties->latency_us = wire->latency_us;
    properties->max_comms = wire->max_connections;
    properties->max_recvs = kMaxGroupedReceives;
    properties->device_type = kNetDeviceHost;
    properties->device_version = 0;
    if constexpr (requires { properties->virtual_devices; }) {  // from 9 on
        properties->force_flush = 0;
        properties->virtual_devices.count = 1;
        properties->virtual_devices.devices[0] = device;
        properties->max_p2p_bytes = properties->max_coll_bytes =
            std::min(wire->max_message_bytes, kMostMessageBytes);
    }
    if constexpr (requires { properties->max_multi_request_size; }) {  // from 11 on
        properties->max_multi_request_size = 1;
    }
    if constexpr (requires { properties->rail_id; }) {  // from 12 on
        properties->rail_id = static_cast<int16_t>(wire->rail_id);
        properties->plane_id = static_cast<int16_t>(wire->plane_id);
    }
    return ncclSuccess;
}

// What every version takes alike. Not offered, and so null: DMA-BUF, device offload, virtual cards.
template <class Table>
constexpr Table common_table() noexcept {
    Table table{};
    table.name = kPluginName;
    table.devices = devices;
    table.get_properties = get_properties;
    table.accept = accept;
    table.reg_mr = reg_mr;
    table.dereg_mr = dereg_mr;
    table.iflush = iflush;
    table.test = test;
    table.close_send = close_comm;
    table.close_recv = close_comm;
    table.close_listen = close_listen;
    return table;
}

// From version 11 on: a context for each communicator.
template <class Table>
constexpr Table table_with_contexts() noexcept {
    Table table = common_table<Table>();
    table.init = init;
    table.listen = listen;
    table.connect = connect;
    table.isend = isend;
    table.irecv = irecv;
    table.finalize = finalize;
    table.set_net_attr = set_net_attr;
    return table;
}

// Up to version 10: the process's contexts.
inline ncclResult_t listen_in_process(int device, void* handle, void** listen_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = process_context(-1, &context);
    return result != ncclSuccess ? result : listen(context, device, handle, listen_comm);
}
inline ncclResult_t connect_in_process(int traffic_class,
                                       int device,
                                       void* handle,
                                       void** send_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = process_context(traffic_class, &context);
    return result != ncclSuccess ? result : connect(context, device, handle, send_comm, nullptr);
}

// Up to version 9: no traffic class.
inline ncclResult_t connect_without_class(int device,
                                          void* handle,
                                          void** send_comm,
                                          NetDeviceHandle**) noexcept {
    return connect_in_process(-1, device, handle, send_comm);
}

// The same: the table itself.
template <class Table>
constexpr Table table_without_class(decltype(Table::isend) isend,
                                    decltype(Table::irecv) irecv) noexcept {
    Table table = common_table<Table>();
    table.init = init_process;
    table.listen = listen_in_process;
    table.connect = connect_without_class;
    table.isend = isend;
    table.irecv = irecv;
    return table;
}

}  // namespace slimwire::net::tables

// The object that NCCL looks up.
#define SLIMWIRE_NET_TABLE(type, name, value)                                         \
    extern "C" __attribute__((visibility("default"))) const slimwire::net::type name; \
    extern "C" constinit const slimwire::net::type name = value
