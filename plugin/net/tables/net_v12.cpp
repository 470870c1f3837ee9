#include "plugin/net/abi/net_v12.h"

#include <algorithm>

#include "plugin/net/tables/calls.h"

namespace slimwire::net {
namespace {

ncclResult_t init(void** context,
                  uint64_t comm_id,
                  NetCommConfigV12* config,
                  DebugLogger log,
                  ProfilerCallback profiler) noexcept {
    const int traffic_class = config != nullptr ? config->traffic_class : -1;
    return tables::init(context, comm_id, traffic_class, log, profiler);
}

ncclResult_t get_properties(int device, NetPropertiesV12* properties) noexcept {
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
    properties->max_multi_request_size = 1;
    properties->rail_id = static_cast<int16_t>(wire.rail_id);
    properties->plane_id = static_cast<int16_t>(wire.plane_id);
    return ncclSuccess;
}

ncclResult_t connect(
    void* context, int device, void* handle, void** send_comm, NetDeviceHandle**) noexcept {
    return tables::connect(context, device, handle, send_comm);
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

// What NCCL is about to do; messages say enough by themselves.
ncclResult_t set_net_attr(void*, NetAttrV12*) noexcept {
    return ncclSuccess;
}

}  // namespace
}  // namespace slimwire::net

extern "C" __attribute__((visibility("default"))) const slimwire::net::NetV12 ncclNetPlugin_v12;
extern "C" const slimwire::net::NetV12 ncclNetPlugin_v12 = {
    .name = slimwire::net::tables::kPluginName,
    .init = slimwire::net::init,
    .devices = slimwire::net::tables::devices,
    .get_properties = slimwire::net::get_properties,
    .listen = slimwire::net::tables::listen,
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
    .finalize = slimwire::net::tables::finalize,
    .set_net_attr = slimwire::net::set_net_attr,
};
