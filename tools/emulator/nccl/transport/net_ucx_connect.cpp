// How the built-in network makes connections. listen() opens a TCP socket whose address goes into
// the handle; connect() sends a short hello with the listener's token; accept() checks the token,
// answers with the UCX address of its worker and a connection number, and both drop the socket. A
// connection that does not know the token is dropped and changes nothing.
#include <cstring>

#include "tools/emulator/nccl/bootstrap/doorkeeper.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/transport/device.h"
#include "tools/emulator/nccl/transport/net_ucx.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kHandleMagic = 0x534c494d4e455431;  // "SLIMNET1"
constexpr uint32_t kMaxAddressBytes = 4096;
constexpr int kHelloTimeoutMs = 2000;

struct Hello {
    uint64_t magic;
    uint64_t token;
    int32_t node;
    int32_t reserved;
};

struct Answer {
    uint64_t connection;
    uint32_t address_bytes;
    uint32_t reserved;
};

// A connection on its way: lives between the first connect() of a handle and the last.
struct Connecting {
    Socket socket;
    bool hello_sent = false;
};

struct Handle {
    uint64_t magic;
    uint64_t token;
    SocketAddress address;
    int32_t node;
    Connecting* connecting;  // the connecting side's own note; null in a fresh handle
};
static_assert(sizeof(Handle) <= net::kNetHandleBytes);

struct Listener {
    NetContext* context;
    Doorkeeper<Hello> door;
    uint64_t token;
    int node;
};

std::unique_ptr<NetComm> make_comm(NetContext* context, int own_node, int peer_node) {
    auto comm = std::make_unique<NetComm>();
    comm->context = context;
    comm->own_node = own_node;
    comm->shaped = context->shaper != nullptr && own_node != peer_node;
    return comm;
}

NetComm* keep(NetContext& context, std::unique_ptr<NetComm> comm) {
    context.comms.push_back(std::move(comm));
    return context.comms.back().get();
}

Status read_answer(NetContext* context,
                   const Handle& handle,
                   Connecting& connecting,
                   int own_node,
                   NetComm** out) {
    Answer answer{};
    SLIMWIRE_TRY(receive_all(connecting.socket.fd(), &answer, sizeof answer, kHelloTimeoutMs));
    if (answer.address_bytes > kMaxAddressBytes) {
        return {Code::kSystemError,
                "net: an answer that is none from " + to_string(handle.address)};
    }
    std::vector<unsigned char> address(answer.address_bytes);
    SLIMWIRE_TRY(
        receive_all(connecting.socket.fd(), address.data(), address.size(), kHelloTimeoutMs));
    auto comm = make_comm(context, own_node, handle.node);
    comm->connection = answer.connection;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    SLIMWIRE_TRY(make_worker(*context));
    const std::lock_guard lock(context->mutex);
    const UcxApi& api = context->ucx->api;
    const ucs_status_t status = api.ucp_ep_create(context->worker, &params, &comm->endpoint);
    if (status != UCS_OK) {
        return {Code::kSystemError, std::string("UCX: endpoint: ") + api.ucs_status_string(status)};
    }
    *out = keep(*context, std::move(comm));
    return {};
}

Status connect_step(NetContext* context, int device, Handle* handle, NetComm** out) {
    if (handle->connecting == nullptr) {
        auto connecting = std::make_unique<Connecting>();
        SLIMWIRE_TRY_ASSIGN(connecting->socket, start_connect(handle->address));
        handle->connecting = connecting.release();
    }
    Connecting& connecting = *handle->connecting;
    const int own_node = node_of_net_device(device);
    if (!connecting.hello_sent) {
        switch (connection_state(connecting.socket)) {
            case ConnectionState::kPending:
                return {};
            case ConnectionState::kFailed:
                return {Code::kRemoteError, "net: connection to " + to_string(handle->address) +
                                                " failed: " + strerror(errno)};
            case ConnectionState::kReady:
                break;
        }
        const Hello hello{kHandleMagic, handle->token, own_node, 0};
        SLIMWIRE_TRY(send_all(connecting.socket.fd(), &hello, sizeof hello, kHelloTimeoutMs));
        connecting.hello_sent = true;
    }
    if (!has_bytes(connecting.socket, sizeof(Answer))) {
        if (hung_up(connecting.socket)) {
            return {Code::kRemoteError,
                    "net: " + to_string(handle->address) + " closed the connection"};
        }
        return {};
    }
    return read_answer(context, *handle, connecting, own_node, out);
}

Status admit(Listener& listener, const Guest<Hello>& guest, NetComm** out) {
    NetContext& context = *listener.context;
    auto comm = make_comm(&context, listener.node, guest.greeting.node);
    {
        const std::lock_guard lock(context.mutex);
        comm->connection = context.next_connection++;
    }
    const int fd = guest.socket.fd();
    const Answer answer{comm->connection, static_cast<uint32_t>(context.address.size()), 0};
    SLIMWIRE_TRY(send_all(fd, &answer, sizeof answer, kHelloTimeoutMs));
    SLIMWIRE_TRY(send_all(fd, context.address.data(), context.address.size(), kHelloTimeoutMs));
    const std::lock_guard lock(context.mutex);
    *out = keep(context, std::move(comm));
    return {};
}

Status accept_step(Listener& listener, NetComm** out) {
    for (const Guest<Hello>& guest : listener.door.arrivals()) {
        if (guest.greeting.magic != kHandleMagic || guest.greeting.token != listener.token) {
            log_info("net: a stray connection was refused");
        } else if (*out == nullptr) {
            SLIMWIRE_TRY(admit(listener, guest, out));
        }
    }
    return {};
}

}  // namespace

int node_of_net_device(int device) noexcept {
    const int node = emulator_api().node_of_device(device);
    return node < 0 ? 0 : node;
}

ncclResult_t net_listen(void* context, int device, void* handle, void** listen_comm) {
    auto listener = std::make_unique<Listener>();
    listener->context = static_cast<NetContext*>(context);
    if (const Status made = make_worker(*listener->context); !made.ok()) {
        return to_nccl(made);
    }
    listener->node = node_of_net_device(device);
    listener->token = random_u64();
    Handle made{kHandleMagic, listener->token, {}, listener->node, nullptr};
    Result<Socket> socket = listen_on_bootstrap_interface(&made.address);
    if (!socket.ok()) {
        return to_nccl(socket.status());
    }
    listener->door = Doorkeeper<Hello>(std::move(socket).value());
    memset(handle, 0, net::kNetHandleBytes);
    memcpy(handle, &made, sizeof made);
    *listen_comm = listener.release();
    return ncclSuccess;
}

ncclResult_t net_connect(
    void* context, int device, void* handle, void** send_comm, net::NetDeviceHandle**) {
    *send_comm = nullptr;
    auto* target = static_cast<Handle*>(handle);
    if (target->magic != kHandleMagic) {
        return to_nccl({Code::kInternalError, "net: this handle is not of the emulator's network"});
    }
    NetComm* comm = nullptr;
    const Status status = connect_step(static_cast<NetContext*>(context), device, target, &comm);
    if (!status.ok() || comm != nullptr) {
        delete target->connecting;
        target->connecting = nullptr;
    }
    *send_comm = comm;
    return to_nccl(status);
}

ncclResult_t net_accept(void* listen_comm, void** recv_comm, net::NetDeviceHandle**) {
    *recv_comm = nullptr;
    NetComm* comm = nullptr;
    const Status status = accept_step(*static_cast<Listener*>(listen_comm), &comm);
    *recv_comm = comm;
    return to_nccl(status);
}

ncclResult_t net_close_listen(void* listen_comm) {
    delete static_cast<Listener*>(listen_comm);
    return ncclSuccess;
}

}  // namespace slimwire::emu
