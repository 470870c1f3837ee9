#include "tools/emulator/nccl/transport/link.h"

#include <atomic>
#include <string>

#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kHandleTag = 1ull << 56;

struct Counters {
    std::atomic<uint64_t> sent{0};
    std::atomic<uint64_t> received{0};
    std::atomic<uint64_t> inter_node_sent{0};
    std::atomic<uint64_t> messages{0};
};
Counters g_counters;

uint64_t handle_tag(Channel channel) {
    return kHandleTag | static_cast<uint64_t>(channel);
}

}  // namespace

void read_counters(EmulatorCounters* out) noexcept {
    out->payload_bytes_sent = g_counters.sent;
    out->payload_bytes_received = g_counters.received;
    out->inter_node_bytes_sent = g_counters.inter_node_sent;
    out->messages_sent = g_counters.messages;
}

Link::Link(const Members& members,
           NetContextOf& net,
           int peer,
           Channel channel,
           bool sending,
           bool inter_node)
    : members_(members),
      net_(net),
      peer_(peer),
      channel_(channel),
      sending_(sending),
      inter_node_(inter_node) {}

Status Link::failure(ncclResult_t result, const char* what) const {
    const Code code = result == ncclRemoteError || result == ncclSystemError ? Code::kRemoteError
                                                                             : Code::kInternalError;
    return {code, std::string(net_.table->name) + " network: " + what + " rank " +
                      std::to_string(peer_) + " failed with " + std::to_string(result) + ": " +
                      last_error()};
}

Status Link::connect_step() {
    const int peer = members_.mesh_rank(peer_);
    if (handle_.empty() &&
        !members_.mesh->try_receive(peer, members_.comm, handle_tag(channel_), &handle_)) {
        return {};
    }
    if (handle_.size() != static_cast<size_t>(net::kNetHandleBytes)) {
        return {Code::kInternalError, "connection handle of the wrong size"};
    }
    const ncclResult_t result =
        net_.table->connect(net_.context, net_.device, handle_.data(), &comm_, nullptr);
    return result == ncclSuccess ? Status() : failure(result, "connecting to");
}

Status Link::listen_step() {
    ncclResult_t result = ncclSuccess;
    if (listener_ == nullptr) {
        char handle[net::kNetHandleBytes] = {};
        result = net_.table->listen(net_.context, net_.device, handle, &listener_);
        if (result != ncclSuccess) {
            return failure(result, "listening for");
        }
        members_.mesh->send(members_.mesh_rank(peer_), members_.comm, handle_tag(channel_), handle,
                            sizeof handle);
    }
    result = net_.table->accept(listener_, &comm_, nullptr);
    if (result != ncclSuccess) {
        return failure(result, "accepting");
    }
    if (comm_ != nullptr) {
        net_.table->close_listen(listener_);
        listener_ = nullptr;
    }
    return {};
}

Status Link::connect_or_listen() {
    return sending_ ? connect_step() : listen_step();
}

void Link::count_sent(size_t bytes, size_t on_wire) const noexcept {
    g_counters.sent += bytes;
    g_counters.inter_node_sent += inter_node_ ? on_wire : 0;
    ++g_counters.messages;
}

void Link::count_received(size_t bytes) noexcept {
    g_counters.received += bytes;
}

Status Link::start(
    void* data, size_t bytes, const WireOperation&, Transfer* transfer, bool* started) {
    *started = false;
    if (comm_ == nullptr) {
        SLIMWIRE_TRY(connect_or_listen());
        if (comm_ == nullptr) {
            return {};
        }
    }
    ncclResult_t result = ncclSuccess;
    void* request = nullptr;
    if (sending_) {
        result = net_.table->isend(comm_, data, bytes, members_.rank, nullptr, nullptr, &request);
    } else {
        int tag = peer_;
        result = net_.table->irecv(comm_, 1, &data, &bytes, &tag, nullptr, nullptr, &request);
    }
    *started = result == ncclSuccess && request != nullptr;
    if (result != ncclSuccess) {
        return failure(result, sending_ ? "sending to" : "receiving from");
    }
    if (*started) {
        *transfer = {};
        transfer->request = request;
        if (sending_) {
            count_sent(bytes, bytes);
        }
    }
    return {};
}

Status Link::test(Transfer* transfer, bool* done, size_t* bytes) {
    int finished = 0;
    int size = 0;
    const ncclResult_t result = net_.table->test(transfer->request, &finished, &size);
    if (result != ncclSuccess) {
        return failure(result, sending_ ? "sending to" : "receiving from");
    }
    *done = finished != 0;
    if (*done) {
        *bytes = static_cast<size_t>(size);
        if (!sending_) {
            count_received(*bytes);
        }
    }
    return {};
}

void Link::close() noexcept {
    if (listener_ != nullptr) {
        net_.table->close_listen(listener_);
        listener_ = nullptr;
    }
    if (comm_ != nullptr) {
        sending_ ? net_.table->close_send(comm_) : net_.table->close_recv(comm_);
        comm_ = nullptr;
    }
}

}  // namespace slimwire::emu
