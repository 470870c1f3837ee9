#include "plugin/net/abi/net_v10.h"

#include <algorithm>

#include "plugin/net/tables/calls.h"

namespace slimwire::net {
namespace {

ncclResult_t init(DebugLogger log, ProfilerCallback profiler) noexcept {
    return tables::init_process(log, profiler);
}

ncclResult_t get_properties(int device, NetPropertiesV10* properties) noexcept {
    const ncclResult_t result = tables::fill_properties(device, properties);
    if (result != ncclSuccess) {
        return result;
    }
    const WireDevice& wire = *tables::device_properties(device);
    properties->force_flush = wire.force_flush ? 1 : 0;
    properties->virtual_devices.count = 1;
    properties->virtual_devices.devices[0] = device;
    properties->max_p2p_bytes = properties->max_coll_bytes =
        std::min(wire.max_message_bytes, tables::kMostBytes);
    return ncclSuccess;
}

ncclResult_t listen(int device, void* handle, void** listen_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = tables::process_context(-1, &context);
    return result != ncclSuccess ? result : tables::listen(context, device, handle, listen_comm);
}

ncclResult_t connect(int device,
                     NetCommConfigV10* config,
                     void* handle,
                     void** send_comm,
                     NetDeviceHandle**) noexcept {
    void* context = nullptr;
    const int traffic_class = config != nullptr ? config->traffic_class : -1;
    const ncclResult_t result = tables::process_context(traffic_class, &context);
    return result != ncclSuccess ? result : tables::connect(context, device, handle, send_comm);
}

ncclResult_t accept(void* listen_comm, void** recv_comm, NetDeviceHandle**) noexcept {
    return tables::accept(listen_comm, recv_comm);
}

ncclResult_t irecv(void* recv_comm,
                   int count,
                   void** data,
                   size_t* bytes,
                   int* tags,
                   void** mhandles,
                   void**,
                   void** request) noexcept {
    return tables::irecv(recv_comm, count, data, bytes, tags, mhandles, request);
}

ncclResult_t iflush(
    void* recv_comm, int count, void** data, int* bytes, void** mhandles, void** request) noexcept {
    return tables::iflush(recv_comm, count, data, bytes, mhandles, request);
}

}  // namespace
}  // namespace slimwire::net

extern "C" __attribute__((visibility("default"))) const slimwire::net::NetV10 ncclNetPlugin_v10;
extern "C" const slimwire::net::NetV10 ncclNetPlugin_v10 = {
    .name = slimwire::net::tables::kPluginName,
    .init = slimwire::net::init,
    .devices = slimwire::net::tables::devices,
    .get_properties = slimwire::net::get_properties,
    .listen = slimwire::net::listen,
    .connect = slimwire::net::connect,
    .accept = slimwire::net::accept,
    .reg_mr = slimwire::net::tables::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = slimwire::net::tables::dereg_mr,
    .isend = slimwire::net::tables::isend,
    .irecv = slimwire::net::irecv,
    .iflush = slimwire::net::iflush,
    .test = slimwire::net::tables::test,
    .close_send = slimwire::net::tables::close_comm,
    .close_recv = slimwire::net::tables::close_comm,
    .close_listen = slimwire::net::tables::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_vdevice = nullptr,
};
