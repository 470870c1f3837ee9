#include "plugin/net/abi/net_v8.h"

#include "plugin/net/tables/calls.h"

namespace slimwire::net {
namespace {

ncclResult_t init(DebugLogger log) noexcept {
    return tables::init_process(log, nullptr);
}

ncclResult_t get_properties(int device, NetPropertiesV8* properties) noexcept {
    return tables::fill_properties(device, properties);
}

ncclResult_t listen(int device, void* handle, void** listen_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = tables::process_context(-1, &context);
    return result != ncclSuccess ? result : tables::listen(context, device, handle, listen_comm);
}

ncclResult_t connect(int device, void* handle, void** send_comm, NetDeviceHandle**) noexcept {
    void* context = nullptr;
    const ncclResult_t result = tables::process_context(-1, &context);
    return result != ncclSuccess ? result : tables::connect(context, device, handle, send_comm);
}

ncclResult_t accept(void* listen_comm, void** recv_comm, NetDeviceHandle**) noexcept {
    return tables::accept(listen_comm, recv_comm);
}

ncclResult_t isend(
    void* send_comm, void* data, int bytes, int tag, void* mhandle, void** request) noexcept {
    if (bytes < 0) {
        return tables::refuse(ncclInvalidArgument, "send: a negative number of bytes");
    }
    return tables::isend(send_comm, data, static_cast<size_t>(bytes), tag, mhandle, nullptr,
                         request);
}

ncclResult_t irecv(void* recv_comm,
                   int count,
                   void** data,
                   int* bytes,
                   int* tags,
                   void** mhandles,
                   void** request) noexcept {
    size_t sizes[kMaxGroupedReceives] = {};
    for (int i = 0; i < count && i < kMaxGroupedReceives; ++i) {
        if (bytes[i] < 0) {
            return tables::refuse(ncclInvalidArgument, "receive: a negative number of bytes");
        }
        sizes[i] = static_cast<size_t>(bytes[i]);
    }
    return tables::irecv(recv_comm, count, data, sizes, tags, mhandles, request);
}

ncclResult_t iflush(
    void* recv_comm, int count, void** data, int* bytes, void** mhandles, void** request) noexcept {
    return tables::iflush(recv_comm, count, data, bytes, mhandles, request);
}

}  // namespace
}  // namespace slimwire::net

extern "C" __attribute__((visibility("default"))) const slimwire::net::NetV8 ncclNetPlugin_v8;
extern "C" const slimwire::net::NetV8 ncclNetPlugin_v8 = {
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
    .isend = slimwire::net::isend,
    .irecv = slimwire::net::irecv,
    .iflush = slimwire::net::iflush,
    .test = slimwire::net::tables::test,
    .close_send = slimwire::net::tables::close_comm,
    .close_recv = slimwire::net::tables::close_comm,
    .close_listen = slimwire::net::tables::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};
