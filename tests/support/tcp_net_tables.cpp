// The test plugin's network in each version of the interface, over its version 11: all of them, or
// the one that TEST_NET_ONLY names.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "plugin/net/abi/net.h"
#include "tests/support/tcp_net_plugin.h"

namespace slimwire::test {
namespace {

using namespace slimwire::net;

constexpr char kName[] = "TestTcp";
int g_context = 0;  // of the versions that know none

template <class Properties>
ncclResult_t get_properties(int device, Properties* out) {
    NetPropertiesV11 from{};
    const ncclResult_t result = table_v11().get_properties(device, &from);
    *out = {};
    out->ptr_support = from.ptr_support;
    out->max_recvs = from.max_recvs;
    out->max_comms = from.max_comms;
    out->speed_mbps = from.speed_mbps;
    if constexpr (requires { out->max_p2p_bytes; }) {
        out->max_p2p_bytes = from.max_p2p_bytes;
        out->max_coll_bytes = from.max_coll_bytes;
        out->virtual_devices.count = 1;
    }
    return result;
}

ncclResult_t init_v8(DebugLogger log) {
    return init_shared(log, 8);
}
ncclResult_t init_v9(DebugLogger log) {
    return init_shared(log, 9);
}
ncclResult_t init_v10(DebugLogger log, ProfilerCallback) {
    return init_shared(log, 10);
}
ncclResult_t init_v12(void** context,
                      uint64_t comm,
                      NetCommConfigV12* config,
                      DebugLogger log,
                      ProfilerCallback profiler) {
    const ncclResult_t result = table_v11().init(context, comm, config, log, profiler);
    counts().version = 12;
    return result;
}

ncclResult_t listen_plain(int device, void* handle, void** listen_comm) {
    return table_v11().listen(&g_context, device, handle, listen_comm);
}
ncclResult_t connect_plain(int device, void* handle, void** comm, NetDeviceHandle** offload) {
    return table_v11().connect(&g_context, device, handle, comm, offload);
}
ncclResult_t connect_v10(
    int device, NetCommConfigV10* config, void* handle, void** comm, NetDeviceHandle** offload) {
    return config == nullptr ? ncclInvalidArgument
                             : table_v11().connect(&g_context, device, handle, comm, offload);
}

template <class Size>
bool negative(const Size* bytes, int count) {
    return std::any_of(bytes, bytes + count, [](Size b) { return static_cast<ptrdiff_t>(b) < 0; });
}
template <class Size>
ncclResult_t isend_plain(
    void* comm, void* data, Size bytes, int tag, void* mhandle, void** request) {
    if (negative(&bytes, 1)) {
        return ncclInvalidArgument;
    }
    return table_v11().isend(comm, data, static_cast<size_t>(bytes), tag, mhandle, nullptr,
                             request);
}
template <class Size>
ncclResult_t irecv_plain(
    void* comm, int count, void** data, Size* bytes, int* tags, void** mhandles, void** request) {
    if (negative(bytes, count)) {
        return ncclInvalidArgument;
    }
    std::vector<size_t> sizes(bytes, bytes + count);
    return table_v11().irecv(comm, count, data, sizes.data(), tags, mhandles, nullptr, request);
}

// What is the same in all versions.
template <class Table>
Table common() {
    const NetV11& from = table_v11();
    Table table{};
    table.name = kName;
    table.devices = from.devices;
    table.get_properties = get_properties;
    table.accept = from.accept;
    table.reg_mr = from.reg_mr;
    table.dereg_mr = from.dereg_mr;
    table.test = from.test;
    table.close_send = from.close_send;
    table.close_recv = from.close_recv;
    table.close_listen = from.close_listen;
    return table;
}

// Of a version without profiler.
template <class Table, class Size>
Table make_plain(ncclResult_t (*init)(DebugLogger log)) {
    auto table = common<Table>();
    table.init = init;
    table.listen = listen_plain;
    table.connect = connect_plain;
    table.isend = isend_plain<Size>;
    table.irecv = irecv_plain<Size>;
    return table;
}
NetV10 make_v10() {
    auto table = common<NetV10>();
    table.init = init_v10;
    table.listen = listen_plain;
    table.connect = connect_v10;
    table.isend = table_v11().isend;
    table.irecv = table_v11().irecv;
    return table;
}
NetV12 make_v12() {
    auto table = common<NetV12>();
    table.init = init_v12;
    table.listen = table_v11().listen;
    table.connect = table_v11().connect;
    table.isend = table_v11().isend;
    table.irecv = table_v11().irecv;
    table.finalize = table_v11().finalize;
    table.set_net_attr = table_v11().set_net_attr;
    return table;
}

}  // namespace
}  // namespace slimwire::test

#define SLIMWIRE_TEST_TABLE(type, name, value)                                  \
    extern "C" __attribute__((visibility("default"))) slimwire::net::type name; \
    slimwire::net::type name = value

#if !defined(TEST_NET_ONLY) || TEST_NET_ONLY == 8
SLIMWIRE_TEST_TABLE(
    NetV8,
    ncclNetPlugin_v8,
    (slimwire::test::make_plain<slimwire::net::NetV8, int>(slimwire::test::init_v8)));
#endif
#if !defined(TEST_NET_ONLY) || TEST_NET_ONLY == 9
SLIMWIRE_TEST_TABLE(
    NetV9,
    ncclNetPlugin_v9,
    (slimwire::test::make_plain<slimwire::net::NetV9, size_t>(slimwire::test::init_v9)));
#endif
#if !defined(TEST_NET_ONLY) || TEST_NET_ONLY == 10
SLIMWIRE_TEST_TABLE(NetV10, ncclNetPlugin_v10, slimwire::test::make_v10());
#endif
#if !defined(TEST_NET_ONLY) || TEST_NET_ONLY == 11
SLIMWIRE_TEST_TABLE(NetV11, ncclNetPlugin_v11, slimwire::test::table_v11());
#endif
#if !defined(TEST_NET_ONLY) || TEST_NET_ONLY == 12
SLIMWIRE_TEST_TABLE(NetV12, ncclNetPlugin_v12, slimwire::test::make_v12());
#endif
