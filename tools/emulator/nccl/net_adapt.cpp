#include "tools/emulator/nccl/net_adapt.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "plugin/net/abi/net_v10.h"
#include "plugin/net/abi/net_v12.h"
#include "plugin/net/abi/net_v8.h"
#include "plugin/net/abi/net_v9.h"

namespace slimwire::emu {
namespace {

using net::NetV10;
using net::NetV11;
using net::NetV12;
using net::NetV8;
using net::NetV9;

// What a v8 table may be asked to move at once.
constexpr size_t kMaxBytesV8 = size_t{1} << 30;

template <class Table>
constexpr bool kHasContext = std::is_same_v<Table, NetV11> || std::is_same_v<Table, NetV12>;
template <class Table>
constexpr bool kHasHandles = kHasContext<Table> || std::is_same_v<Table, NetV10>;

// The functions of version 11 on top of another table. One instance for each version: a table has
// no place for a pointer of ours.
template <class Table, class Properties>
struct Adapter {
    static inline const Table* inner = nullptr;
    static inline int users = 0;  // communicators that initialised a table without contexts
    static inline NetV11 table = {};
    static inline net::NetCommConfigV11 config = {-1};

    static ncclResult_t init(void** context,
                             uint64_t comm_id,
                             net::NetCommConfigV11* comm_config,
                             net::DebugLogger log,
                             net::ProfilerCallback profiler) {
        if constexpr (kHasContext<Table>) {
            return inner->init(context, comm_id, comm_config, log, profiler);
        } else {
            *context = nullptr;
            config = *comm_config;
            if (users++ > 0) {
                return ncclSuccess;
            }
            if constexpr (kHasHandles<Table>) {
                return inner->init(log, profiler);
            } else {
                return inner->init(log);
            }
        }
    }

    static ncclResult_t get_properties(int device, net::NetPropertiesV11* out) {
        Properties from{};
        if (const ncclResult_t result = inner->get_properties(device, &from);
            result != ncclSuccess) {
            return result;
        }
        *out = {};
        out->name = from.name;
        out->pci_path = from.pci_path;
        out->guid = from.guid;
        out->ptr_support = from.ptr_support;
        out->reg_is_global = from.reg_is_global;
        out->speed_mbps = from.speed_mbps;
        out->port = from.port;
        out->latency_us = from.latency_us;
        out->max_comms = from.max_comms;
        out->max_recvs = from.max_recvs;
        out->device_type = from.device_type;
        out->device_version = from.device_version;
        out->max_multi_request_size = 1;
        if constexpr (std::is_same_v<Table, NetV8>) {
            out->virtual_devices = {1, {device, 0, 0, 0}};
            out->max_p2p_bytes = out->max_coll_bytes = kMaxBytesV8;
        } else {
            out->force_flush = from.force_flush;
            out->max_p2p_bytes = from.max_p2p_bytes;
            out->max_coll_bytes = from.max_coll_bytes;
            const int devices = std::clamp(from.virtual_devices.count, 0, net::kNetMaxDevsPerNic);
            out->virtual_devices.count = devices;
            std::copy_n(from.virtual_devices.devices, devices, out->virtual_devices.devices);
        }
        return ncclSuccess;
    }

    static ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) {
        if constexpr (kHasContext<Table>) {
            return inner->listen(context, device, handle, listen_comm);
        } else {
            return inner->listen(device, handle, listen_comm);
        }
    }

    static ncclResult_t connect(void* context,
                                int device,
                                void* handle,
                                void** send_comm,
                                net::NetDeviceHandle** device_handle) {
        if constexpr (kHasContext<Table>) {
            return inner->connect(context, device, handle, send_comm, device_handle);
        } else if constexpr (kHasHandles<Table>) {
            net::NetCommConfigV10 of_connection{config.traffic_class};
            return inner->connect(device, &of_connection, handle, send_comm, device_handle);
        } else {
            return inner->connect(device, handle, send_comm, device_handle);
        }
    }

    static ncclResult_t isend(void* send_comm,
                              void* data,
                              size_t bytes,
                              int tag,
                              void* mhandle,
                              void* phandle,
                              void** request) {
        if constexpr (kHasHandles<Table>) {
            return inner->isend(send_comm, data, bytes, tag, mhandle, phandle, request);
        } else if constexpr (std::is_same_v<Table, NetV9>) {
            return inner->isend(send_comm, data, bytes, tag, mhandle, request);
        } else {
            return bytes > kMaxBytesV8 ? ncclInternalError
                                       : inner->isend(send_comm, data, static_cast<int>(bytes), tag,
                                                      mhandle, request);
        }
    }

    static ncclResult_t irecv(void* recv_comm,
                              int count,
                              void** data,
                              size_t* bytes,
                              int* tags,
                              void** mhandles,
                              void** phandles,
                              void** request) {
        if constexpr (kHasHandles<Table>) {
            return inner->irecv(recv_comm, count, data, bytes, tags, mhandles, phandles, request);
        } else if constexpr (std::is_same_v<Table, NetV9>) {
            return inner->irecv(recv_comm, count, data, bytes, tags, mhandles, request);
        } else {
            if (*request == net::kOptionalReceiveCompletion) {
                *request = nullptr;
            }
            if (std::any_of(bytes, bytes + count, [](size_t b) { return b > kMaxBytesV8; })) {
                return ncclInternalError;
            }
            std::vector<int> sizes(bytes, bytes + count);
            return inner->irecv(recv_comm, count, data, sizes.data(), tags, mhandles, request);
        }
    }

    static ncclResult_t finalize(void* context) {
        if constexpr (kHasContext<Table>) {
            return inner->finalize != nullptr ? inner->finalize(context) : ncclSuccess;
        } else {
            (void)context;
            --users;
            return ncclSuccess;
        }
    }

    static const NetV11* make(const Table* of) {
        inner = of;
        users = 0;
        table = {};
        table.name = of->name;
        table.init = init;
        table.devices = of->devices;
        table.get_properties = get_properties;
        table.listen = listen;
        table.connect = connect;
        table.accept = of->accept;
        table.reg_mr = of->reg_mr;
        table.reg_mr_dma_buf = of->reg_mr_dma_buf;
        table.dereg_mr = of->dereg_mr;
        table.isend = isend;
        table.irecv = irecv;
        table.iflush = of->iflush;
        table.test = of->test;
        table.close_send = of->close_send;
        table.close_recv = of->close_recv;
        table.close_listen = of->close_listen;
        table.get_device_mr = of->get_device_mr;
        table.irecv_consumed = of->irecv_consumed;
        table.finalize = finalize;
        if constexpr (kHasContext<Table>) {
            table.set_net_attr = of->set_net_attr;
        }
        return &table;
    }
};

template <class Table, class Properties>
bool take(
    const PluginLibrary& library, const char* symbol, int version, int only, AdaptedNet* out) {
    if (out->table != nullptr || (only != 0 && only != version)) {
        return false;
    }
    const auto* table = static_cast<const Table*>(library.symbol(symbol));
    if (table != nullptr) {
        *out = {Adapter<Table, Properties>::make(table), version};
    }
    return table != nullptr;
}

}  // namespace

AdaptedNet adapt_net(const PluginLibrary& library, int only) {
    AdaptedNet result;
    take<NetV12, net::NetPropertiesV12>(library, net::kNetPluginSymbolV12, 12, only, &result);
    if (result.table == nullptr && (only == 0 || only == 11)) {
        result = {static_cast<const NetV11*>(library.symbol(net::kNetPluginSymbolV11)), 11};
    }
    take<NetV10, net::NetPropertiesV10>(library, net::kNetPluginSymbolV10, 10, only, &result);
    take<NetV9, net::NetPropertiesV9>(library, net::kNetPluginSymbolV9, 9, only, &result);
    take<NetV8, net::NetPropertiesV8>(library, net::kNetPluginSymbolV8, 8, only, &result);
    return result;
}

}  // namespace slimwire::emu
