#include "tools/emulator/nccl/transport.h"

#include <atomic>
#include <string>

#include "tools/emulator/nccl/log.h"
#include "tools/emulator/nccl/net_select.h"
#include "tools/emulator/nccl/net_ucx.h"

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

}  // namespace

void read_counters(EmulatorCounters* out) noexcept {
    out->payload_bytes_sent = g_counters.sent;
    out->payload_bytes_received = g_counters.received;
    out->inter_node_bytes_sent = g_counters.inter_node_sent;
    out->messages_sent = g_counters.messages;
}

Link::Link(const Members& members,
           const NetContextOf& net,
           int peer,
           Channel channel,
           bool sending,
           bool inter_node)
    : members_(members),
      net_(net),
      peer_(peer),
      tag_(kHandleTag | static_cast<uint64_t>(channel)),
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
    if (handle_.empty() && !members_.mesh->try_receive(peer, members_.comm, tag_, &handle_)) {
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
        members_.mesh->send(members_.mesh_rank(peer_), members_.comm, tag_, handle, sizeof handle);
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

Status Link::start(void* data, size_t bytes, Transfer* transfer, bool* started) {
    *started = false;
    if (comm_ == nullptr) {
        SLIMWIRE_TRY(sending_ ? connect_step() : listen_step());
        if (comm_ == nullptr) {
            return {};
        }
    }
    void* mhandle = nullptr;
    ncclResult_t result = ncclSuccess;
    if (bytes > 0) {
        result = net_.table->reg_mr(comm_, data, bytes, net::kPtrHost, &mhandle);
        if (result != ncclSuccess) {
            return failure(result, "registering memory for");
        }
    }
    void* request = nullptr;
    if (sending_) {
        result = net_.table->isend(comm_, data, bytes, members_.rank, mhandle, nullptr, &request);
    } else {
        int tag = peer_;
        void* phandle = nullptr;
        result = net_.table->irecv(comm_, 1, &data, &bytes, &tag, &mhandle, &phandle, &request);
    }
    *started = result == ncclSuccess && request != nullptr;
    if (!*started && bytes > 0) {
        net_.table->dereg_mr(comm_, mhandle);
    }
    if (result != ncclSuccess) {
        return failure(result, sending_ ? "sending to" : "receiving from");
    }
    if (*started) {
        *transfer = {request, bytes > 0 ? mhandle : nullptr};
        if (sending_) {
            g_counters.sent += bytes;
            g_counters.inter_node_sent += inter_node_ ? bytes : 0;
            ++g_counters.messages;
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
        if (transfer->mhandle != nullptr) {
            net_.table->dereg_mr(comm_, transfer->mhandle);
        }
        if (!sending_) {
            g_counters.received += *bytes;
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

bool Transport::inter_node(int peer) const {
    return members_.info(peer).node != members_.info(members_.rank).node;
}

Status Transport::open_net(const net::NetV11* table, int device, NetContextOf* out) {
    net::NetCommConfigV11 config{-1};
    int devices = 0;
    ncclResult_t result = table->init(&out->context, members_.comm, &config, plugin_log, nullptr);
    if (result != ncclSuccess) {
        return {Code::kSystemError, std::string(table->name) + " network: " + last_error()};
    }
    out->table = table;
    result = table->devices(&devices);
    if (result != ncclSuccess || devices < 1) {
        return {Code::kSystemError, std::string(table->name) + " network: no device"};
    }
    out->device = device % devices;
    return {};
}

Status Transport::open(int device) {
    bool any_intra = false;
    bool any_inter = false;
    for (int peer = 0; peer < members_.size(); ++peer) {
        if (peer != members_.rank) {
            (inter_node(peer) ? any_inter : any_intra) = true;
        }
    }
    if (any_inter) {
        SLIMWIRE_TRY(open_net(inter_node_net(), device, &inter_));
    }
    if (any_intra) {
        if (inter_.table == builtin_net()) {
            intra_ = inter_;
        } else {
            SLIMWIRE_TRY(open_net(builtin_net(), device, &intra_));
        }
    }
    return {};
}

void Transport::close() noexcept {
    links_.clear();
    if (intra_.table != nullptr && intra_.context != inter_.context) {
        intra_.table->finalize(intra_.context);
    }
    if (inter_.table != nullptr) {
        inter_.table->finalize(inter_.context);
    }
    intra_ = inter_ = {};
}

Link& Transport::link(int peer, Channel channel, bool sending) {
    std::unique_ptr<Link>& entry = links_[{peer, channel, sending}];
    if (entry == nullptr) {
        const bool far = inter_node(peer);
        entry =
            std::make_unique<Link>(members_, far ? inter_ : intra_, peer, channel, sending, far);
    }
    return *entry;
}

}  // namespace slimwire::emu
