// The data path of the built-in network. See net_ucx.h.
#include "tools/emulator/nccl/transport/net_ucx.h"

#include <algorithm>
#include <cstring>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/bootstrap/flush_keeper.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

// A card's queue: messages are accepted while less than this is waiting to leave.
constexpr uint64_t kQueueAheadNs = 4'000'000;
// A sender that comes back late after being refused is credited the wire time that its waiting data
// would have used, up to this much.
constexpr uint64_t kMaxCreditNs = 20'000'000;
constexpr int kProgressRounds = 16;

// Tag: 23 bits of connection, 40 of sequence, 1 that tells header from payload.
uint64_t tag_of(const NetComm& comm, uint64_t sequence, bool payload) {
    return comm.connection << 41 | (sequence & ((1ull << 40) - 1)) << 1 | (payload ? 1 : 0);
}

// Book-keeping around a UCX call that starts `operation`.
void before_start(NetRequest& request, NetOperation& operation) {
    operation = {&request, nullptr, false};
    ++request.pending;
}

// Returns true when the operation is complete already and will not call back.
bool after_start(NetOperation& operation, ucs_status_ptr_t result) {
    if (UCS_PTR_IS_PTR(result)) {
        operation.handle = operation.called_back ? nullptr : result;
        return false;
    }
    --operation.request->pending;
    operation.request->failed |= UCS_PTR_STATUS(result) != UCS_OK;
    return UCS_PTR_STATUS(result) == UCS_OK;
}

void called_back(NetOperation& operation, void* handle) {
    operation.called_back = true;
    operation.handle = nullptr;
    --operation.request->pending;
    operation.request->comm->context->ucx->api.ucp_request_free(handle);
}

void on_sent(void* handle, ucs_status_t status, void* user_data) {
    auto& operation = *static_cast<NetOperation*>(user_data);
    operation.request->failed |= status != UCS_OK;
    called_back(operation, handle);
}

void start_send(
    NetOperation& operation, NetRequest& request, const void* data, size_t bytes, uint64_t tag) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_sent;
    param.user_data = &operation;
    const NetComm& comm = *request.comm;
    before_start(request, operation);
    after_start(operation,
                comm.context->ucx->api.ucp_tag_send_nbx(comm.endpoint, data, bytes, tag, &param));
}

void header_arrived(NetRequest& request) {
    request.header_arrived = true;
    const uint64_t bytes = request.message.bytes;
    if (bytes > request.capacity) {
        log_warn("net: a message of %lu bytes came for a receive of %lu",
                 static_cast<unsigned long>(bytes), static_cast<unsigned long>(request.capacity));
        request.failed = true;
        return;
    }
    if (bytes > 0 && bytes <= kInlineBytes) {
        memcpy(request.data, request.message.payload, bytes);
    }
    if (bytes <= kInlineBytes && request.payload.handle != nullptr) {
        request.withdrawn = true;
        const NetContext& context = *request.comm->context;
        context.ucx->api.ucp_request_cancel(context.worker, request.payload.handle);
    }
}

void on_received(void* handle, ucs_status_t status, const ucp_tag_recv_info_t*, void* user_data) {
    auto& operation = *static_cast<NetOperation*>(user_data);
    NetRequest& request = *operation.request;
    const bool header = &operation == &request.header;
    called_back(operation, handle);
    if (status != UCS_OK) {
        request.failed |= header || !request.withdrawn;
    } else if (header) {
        header_arrived(request);
    }
}

void start_receive(
    NetOperation& operation, NetRequest& request, void* data, size_t bytes, uint64_t tag) {
    ucp_tag_recv_info_t info{};
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO;
    param.cb.recv = on_received;
    param.user_data = &operation;
    param.recv_info.tag_info = &info;
    const NetContext& context = *request.comm->context;
    before_start(request, operation);
    const bool complete = after_start(
        operation,
        context.ucx->api.ucp_tag_recv_nbx(context.worker, data, bytes, tag, ~0ull, &param));
    if (complete && &operation == &request.header) {
        header_arrived(request);
    }
}

NetRequest* free_request(NetComm& comm) {
    for (NetRequest& request : comm.requests) {
        if (!request.in_use) {
            request.comm = &comm;
            request.in_use = true;
            ++comm.context->active;
            request.failed = request.header_arrived = request.ingress_reserved = false;
            request.withdrawn = false;
            request.pending = 0;
            request.done_at_ns = 0;
            return &request;
        }
    }
    return nullptr;
}

// Room in the card's queue, or the moment at which to ask again.
bool may_send_now(NetComm& comm, uint64_t now) {
    if (!comm.shaped) {
        return true;
    }
    const uint64_t free_ns = comm.context->shaper->egress_free_ns(comm.own_node);
    if (free_ns <= now + kQueueAheadNs) {
        return true;
    }
    if (comm.refused_since_ns == 0) {
        comm.refused_since_ns = now;
    }
    hint_wake_at(free_ns - kQueueAheadNs);
    return false;
}

WireSlot reserve_egress(NetComm& comm, uint64_t now, uint64_t bytes) {
    uint64_t earliest = now;
    if (comm.refused_since_ns != 0) {
        earliest = std::max(comm.refused_since_ns, now - kMaxCreditNs);
    }
    const WireSlot slot = comm.context->shaper->reserve_egress(comm.own_node, earliest, bytes);
    if (slot.finish_ns >= now) {
        comm.refused_since_ns = 0;  // caught up
    }
    return slot;
}

// True when the arrived message has also crossed the receiving card and the wire.
bool wire_time_over(NetRequest& request, uint64_t now) {
    const NetComm& comm = *request.comm;
    if (!comm.shaped) {
        return true;
    }
    const bool receiving = comm.endpoint == nullptr;
    if (receiving && !request.ingress_reserved) {
        const WireMessage& message = request.message;
        // The receiving card is claimed when the first bit comes, not earlier: messages of several
        // senders then share it in the order of their bits.
        if (now < message.start_ns) {
            hint_wake_at(message.start_ns);
            return false;
        }
        Shaper& shaper = *comm.context->shaper;
        const WireSlot slot =
            shaper.reserve_ingress(comm.own_node, message.start_ns, message.bytes);
        request.ingress_reserved = true;
        request.done_at_ns = slot.finish_ns + shaper.spec().latency_ns;
    }
    if (now < request.done_at_ns) {
        hint_wake_at(request.done_at_ns);
        return false;
    }
    return true;
}

}  // namespace

void progress(NetContext& context) {
    for (int round = 0; round < kProgressRounds; ++round) {
        if (context.ucx->api.ucp_worker_progress(context.worker) == 0) {
            return;
        }
    }
}

ncclResult_t net_isend(
    void* send_comm, void* data, size_t bytes, int, void*, void*, void** out_request) {
    auto& comm = *static_cast<NetComm*>(send_comm);
    *out_request = nullptr;
    const std::lock_guard lock(comm.context->mutex);
    const uint64_t now = now_ns();
    NetRequest* request = may_send_now(comm, now) ? free_request(comm) : nullptr;
    if (request == nullptr) {
        progress(*comm.context);
        return ncclSuccess;
    }
    request->sequence = comm.next_sequence++;
    WireMessage& message = request->message;
    message.bytes = bytes;
    message.start_ns = message.finish_ns = message.reserved = 0;
    if (comm.shaped) {
        const WireSlot slot = reserve_egress(comm, now, bytes);
        message.start_ns = slot.start_ns;
        message.finish_ns = slot.finish_ns;
        request->done_at_ns = slot.finish_ns;
    }
    const bool small = bytes <= kInlineBytes;
    if (small && bytes > 0) {
        memcpy(message.payload, data, bytes);
    }
    start_send(request->header, *request, &message, kWireHeaderBytes + (small ? bytes : 0),
               tag_of(comm, request->sequence, false));
    if (!small) {
        start_send(request->payload, *request, data, bytes, tag_of(comm, request->sequence, true));
    }
    *out_request = request;
    return ncclSuccess;
}

ncclResult_t net_irecv(void* recv_comm,
                       int count,
                       void** data,
                       size_t* bytes,
                       int*,
                       void**,
                       void**,
                       void** out_request) {
    auto& comm = *static_cast<NetComm*>(recv_comm);
    *out_request = nullptr;
    if (count != 1) {
        return ncclInternalError;
    }
    const std::lock_guard lock(comm.context->mutex);
    NetRequest* request = free_request(comm);
    if (request == nullptr) {
        return ncclSuccess;
    }
    request->sequence = comm.next_sequence++;
    request->data = static_cast<unsigned char*>(data[0]);
    request->capacity = bytes[0];
    // The payload's receive is posted at once, so that it is not copied twice; a message that turns
    // out small does without.
    if (request->capacity > kInlineBytes) {
        start_receive(request->payload, *request, request->data, request->capacity,
                      tag_of(comm, request->sequence, true));
    }
    start_receive(request->header, *request, &request->message, sizeof(WireMessage),
                  tag_of(comm, request->sequence, false));
    *out_request = request;
    return ncclSuccess;
}

ncclResult_t net_test(void* opaque, int* done, int* bytes) {
    auto& request = *static_cast<NetRequest*>(opaque);
    NetComm& comm = *request.comm;
    *done = 0;
    const std::lock_guard lock(comm.context->mutex);
    progress(*comm.context);
    if (request.failed) {
        return ncclRemoteError;
    }
    const bool receiving = comm.endpoint == nullptr;
    if (receiving && !request.header_arrived) {
        return ncclSuccess;
    }
    // The card is claimed in wire order even when the payload is still being copied.
    const bool crossed = wire_time_over(request, now_ns());
    if (request.pending == 0 && crossed) {
        *done = 1;
        request.in_use = false;
        if (--comm.context->active == 0) {
            flush_when_idle(*comm.context);
        }
        if (bytes != nullptr) {
            *bytes = static_cast<int>(request.message.bytes);
        }
    }
    return ncclSuccess;
}

ncclResult_t net_close(void* opaque) {
    auto& comm = *static_cast<NetComm*>(opaque);
    NetContext& context = *comm.context;
    const std::lock_guard lock(context.mutex);
    comm.closed = true;
    // After a failure receives may still be posted: take them back before their buffers go.
    for (NetRequest& request : comm.requests) {
        for (const NetOperation* operation : {&request.header, &request.payload}) {
            if (request.in_use && comm.endpoint == nullptr && operation->handle != nullptr) {
                context.ucx->api.ucp_request_cancel(context.worker, operation->handle);
            }
        }
    }
    progress(context);
    return ncclSuccess;
}

}  // namespace slimwire::emu
