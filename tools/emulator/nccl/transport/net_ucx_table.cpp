// The built-in network's table: contexts, devices and what needs no work.
#include <algorithm>
#include <string>

#include "tools/emulator/nccl/bootstrap/flush_keeper.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/transport/device.h"
#include "tools/emulator/nccl/transport/net_ucx.h"

namespace slimwire::emu {
namespace {

constexpr int kFlushLimitMs = 2000;

ncclResult_t net_init(
    void** out_context, uint64_t, net::NetCommConfigV11*, net::DebugLogger, net::ProfilerCallback) {
    const Result<const Ucx*> ucx = load_ucx();
    if (!ucx.ok()) {
        return to_nccl(ucx.status());
    }
    const Result<Shaper*> shaper = job_shaper("");
    if (!shaper.ok()) {
        return to_nccl(shaper.status());
    }
    auto context = std::make_unique<NetContext>();
    context->ucx = ucx.value();
    context->shaper = shaper.value();
    *out_context = context.release();
    return ncclSuccess;
}

ncclResult_t net_finalize(void* opaque) {
    const std::unique_ptr<NetContext> context(static_cast<NetContext*>(opaque));
    // Peers may wait for the last bytes of finished messages; after a failure nobody does.
    if (context->worker != nullptr) {
        finish_flush(*context, context->active == 0 ? kFlushLimitMs : 0);
        context->ucx->api.ucp_worker_destroy(context->worker);
    }
    return ncclSuccess;
}

ncclResult_t net_devices(int* count) {
    *count = std::max(1, device_count());
    return ncclSuccess;
}

ncclResult_t net_get_properties(int device, net::NetPropertiesV11* properties) {
    static char name[] = "emulated";
    *properties = {};
    properties->name = name;
    properties->guid = static_cast<uint64_t>(device);
    properties->ptr_support = net::kPtrHost;
    properties->reg_is_global = 1;
    properties->speed_mbps = 100'000;
    properties->port = 1;
    properties->max_comms = 65536;
    properties->max_recvs = 1;
    properties->device_type = net::kNetDeviceHost;
    properties->virtual_devices = {1, {device, 0, 0, 0}};
    properties->max_p2p_bytes = properties->max_coll_bytes = size_t{1} << 30;
    properties->max_multi_request_size = 1;
    if (const Result<Shaper*> shaper = job_shaper(""); shaper.ok() && shaper.value() != nullptr) {
        const LinkSpec& spec = shaper.value()->spec();
        properties->speed_mbps = std::max(1, static_cast<int>(spec.bits_per_second / 1e6));
        properties->latency_us = static_cast<float>(spec.latency_ns) / 1000;
    }
    return ncclSuccess;
}

// Host memory needs no registration.
ncclResult_t net_reg_mr(void*, void*, size_t, int type, void** mhandle) {
    *mhandle = nullptr;
    return type == net::kPtrHost ? ncclSuccess : ncclInternalError;
}
ncclResult_t net_dereg_mr(void*, void*) {
    return ncclSuccess;
}
ncclResult_t net_iflush(void*, int, void**, int*, void**, void** request) {
    *request = nullptr;
    return ncclSuccess;
}
ncclResult_t net_set_attr(void*, net::NetAttrV11*) {
    return ncclSuccess;
}

constexpr net::NetV11 kBuiltinNet = {
    .name = "Emulator",
    .init = net_init,
    .devices = net_devices,
    .get_properties = net_get_properties,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .reg_mr = net_reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = net_dereg_mr,
    .isend = net_isend,
    .irecv = net_irecv,
    .iflush = net_iflush,
    .test = net_test,
    .close_send = net_close,
    .close_recv = net_close,
    .close_listen = net_close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_vdevice = nullptr,
    .finalize = net_finalize,
    .set_net_attr = net_set_attr,
};

}  // namespace

Status make_worker(NetContext& context) {
    const std::lock_guard lock(context.mutex);
    if (context.worker != nullptr) {
        return {};
    }
    const UcxApi& api = context.ucx->api;
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucp_worker_h worker = nullptr;
    ucs_status_t status = api.ucp_worker_create(context.ucx->context, &params, &worker);
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    if (status == UCS_OK) {
        status = api.ucp_worker_get_address(worker, &address, &bytes);
        if (status != UCS_OK) {
            api.ucp_worker_destroy(worker);
        }
    }
    if (status != UCS_OK) {
        return {Code::kSystemError, std::string("UCX: worker: ") + api.ucs_status_string(status)};
    }
    const auto* first = reinterpret_cast<const unsigned char*>(address);
    context.address.assign(first, first + bytes);
    api.ucp_worker_release_address(worker, address);
    context.worker = worker;
    return {};
}

const net::NetV11* builtin_net() noexcept {
    return &kBuiltinNet;
}

}  // namespace slimwire::emu
