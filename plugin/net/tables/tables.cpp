// The tables of all versions, made of calls.h. Constant data: nothing runs when the library is
// loaded.
#include <algorithm>
#include <utility>

#include "plugin/net/abi/net.h"
#include "plugin/net/tables/calls.h"

namespace slimwire::net::tables {
namespace {

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
ncclResult_t listen_in_process(int device, void* handle, void** listen_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = process_context(-1, &context);
    return result != ncclSuccess ? result : listen(context, device, handle, listen_comm);
}
ncclResult_t connect_in_process(int traffic_class,
                                int device,
                                void* handle,
                                void** send_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = process_context(traffic_class, &context);
    return result != ncclSuccess ? result : connect(context, device, handle, send_comm, nullptr);
}

// Version 10: the traffic class comes with each connection.
ncclResult_t init_profiled(DebugLogger log, ProfilerCallback) noexcept {
    return init_process(log);
}
ncclResult_t connect_with_class(int device,
                                NetCommConfigV10* config,
                                void* handle,
                                void** send_comm,
                                NetDeviceHandle**) noexcept {
    return connect_in_process(config != nullptr ? config->traffic_class : -1, device, handle,
                              send_comm);
}
constexpr NetV10 table_with_class() noexcept {
    auto table = common_table<NetV10>();
    table.init = init_profiled;
    table.listen = listen_in_process;
    table.connect = connect_with_class;
    table.isend = isend;
    table.irecv = irecv;
    return table;
}

// Up to version 9: no traffic class and no profiler; up to version 8, sizes are ints.
ncclResult_t connect_without_class(int device,
                                   void* handle,
                                   void** send_comm,
                                   NetDeviceHandle**) noexcept {
    return connect_in_process(-1, device, handle, send_comm);
}
template <class Bytes>
ncclResult_t isend_unprofiled(
    void* send_comm, void* data, Bytes bytes, int tag, void* mhandle, void** request) noexcept {
    if (std::cmp_less(bytes, 0)) {
        return refuse(ncclInvalidArgument, "send: a negative number of bytes");
    }
    return isend(send_comm, data, static_cast<size_t>(bytes), tag, mhandle, nullptr, request);
}
template <class Bytes>
ncclResult_t irecv_unprofiled(void* recv_comm,
                              int count,
                              void** data,
                              Bytes* bytes,
                              int* tags,
                              void** mhandles,
                              void** request) noexcept {
    size_t sizes[kMaxGroupedReceives] = {};
    for (int i = 0; i < count && i < kMaxGroupedReceives; ++i) {
        if (std::cmp_less(bytes[i], 0)) {
            return refuse(ncclInvalidArgument, "receive: a negative number of bytes");
        }
        sizes[i] = static_cast<size_t>(bytes[i]);
    }
    return irecv(recv_comm, count, data, sizes, tags, mhandles, nullptr, request);
}
template <class Table, class Bytes>
constexpr Table table_without_class() noexcept {
    Table table = common_table<Table>();
    table.init = init_process;
    table.listen = listen_in_process;
    table.connect = connect_without_class;
    table.isend = isend_unprofiled<Bytes>;
    table.irecv = irecv_unprofiled<Bytes>;
    return table;
}

}  // namespace

// The objects that NCCL looks up.
#define SLIMWIRE_NET_TABLE(type, name, ...)                            \
    extern "C" __attribute__((visibility("default"))) const type name; \
    extern "C" constinit const type name = __VA_ARGS__

SLIMWIRE_NET_TABLE(NetV8, ncclNetPlugin_v8, table_without_class<NetV8, int>());
SLIMWIRE_NET_TABLE(NetV9, ncclNetPlugin_v9, table_without_class<NetV9, size_t>());
SLIMWIRE_NET_TABLE(NetV10, ncclNetPlugin_v10, table_with_class());
SLIMWIRE_NET_TABLE(NetV11, ncclNetPlugin_v11, table_with_contexts<NetV11>());
SLIMWIRE_NET_TABLE(NetV12, ncclNetPlugin_v12, table_with_contexts<NetV12>());

}  // namespace slimwire::net::tables
