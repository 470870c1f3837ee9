// A connection is one ring of bytes in memory without a name, made by its receiving side. The
// handle names the ring by process and descriptor; the sending side maps it from there. A message
// is a header (size and wire times) and its payload, and messages lie in the ring in the order in
// which they were posted. A send is done when its bytes are in the ring. That a peer is gone, the
// ring does not tell; the mesh does.
//
// Thread contract: a connection belongs to one thread at a time (link.h); two threads share a ring.
#include "tools/emulator/nccl/transport/builtin_net.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/bootstrap/sockets.h"
#include "tools/emulator/nccl/transport/device.h"
#include "tools/emulator/nccl/transport/shaper.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kHandleMagic = 0x534c494d4e455432;  // "SLIMNET2"
constexpr size_t kRingBytes = 512 << 10;
// A side publishes what it has copied after that much, so that the other one can go on.
constexpr size_t kPieceBytes = 64 << 10;
// A card's queue: messages are accepted while less than this is waiting to leave.
constexpr uint64_t kQueueAheadNs = 4'000'000;
// A sender that comes back late after being refused is credited the wire time that its waiting data
// would have used, up to this much.
constexpr uint64_t kMaxCreditNs = 20'000'000;

// Zero when made. The counters never wrap; a byte's place is its number modulo kRingBytes.
struct Ring {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    alignas(
        64) std::atomic<int> sender;  // 1 + the node of the sending side, once that has the ring
    alignas(64) unsigned char bytes[kRingBytes];
};

struct Unmap {
    void operator()(Ring* ring) const noexcept { munmap(ring, sizeof(Ring)); }
};
using RingView = std::unique_ptr<Ring, Unmap>;

struct Handle {
    uint64_t magic;
    uint64_t token;  // in the name of the ring's descriptor
    int32_t process;
    int32_t descriptor;
    int32_t node;
};
static_assert(sizeof(Handle) <= net::kNetHandleBytes);

struct Context {
    Shaper* shaper;
};

struct Header {
    uint64_t bytes;
    uint64_t start_ns;  // when the first bit left the sender; 0 on an unshaped connection
};

struct Connection;

struct Request {
    Connection* connection = nullptr;
    bool in_use = false;
    bool failed = false;
    bool ingress_reserved = false;
    Header header{};
    unsigned char* data = nullptr;
    size_t capacity = 0;
    size_t header_moved = 0;
    size_t data_moved = 0;
    uint64_t done_at_ns = 0;  // shaped: completion is not reported before

    [[nodiscard]] bool header_here() const noexcept { return header_moved == sizeof(Header); }
    [[nodiscard]] bool moved() const noexcept {
        return header_here() && data_moved == header.bytes;
    }
};

// One direction between two ranks.
struct Connection {
    RingView ring;
    bool sending = false;
    int node = 0;                   // its own
    Shaper* shaper = nullptr;       // null inside a node and without a shaped link
    uint64_t refused_since_ns = 0;  // a message waits for room in the card's queue since then
    uint64_t posted = 0;            // requests; request i is number i modulo their count
    uint64_t moved = 0;
    std::array<Request, net::kNetMaxRequests> requests;

    Request& request(uint64_t number) { return requests[number % requests.size()]; }
};

struct Listener {
    RingView ring;
    Socket descriptor;
    Context* context;
    int node;
};

int node_of_net_device(int device) noexcept {
    return std::max(0, emulator_api().node_of_device(device));
}

std::string ring_name(uint64_t token) {
    return "slimwire-emu-" + std::to_string(token);
}

Result<RingView> map_ring(int fd) {
    void* memory = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return Status{Code::kSystemError, std::string("net: mapping a ring: ") + strerror(errno)};
    }
    return RingView(static_cast<Ring*>(memory));
}

Connection* make_connection(
    RingView ring, const Context& context, bool sending, int node, int peer_node) {
    auto connection = std::make_unique<Connection>();
    connection->ring = std::move(ring);
    connection->sending = sending;
    connection->node = node;
    connection->shaper = node != peer_node ? context.shaper : nullptr;
    return connection.release();
}

// Copies between `data` and the ring what can be; true when all `bytes` are over.
bool move(Connection& connection, void* data, size_t bytes, size_t* done) {
    Ring& ring = *connection.ring;
    while (*done < bytes) {
        const uint64_t written = ring.written.load(std::memory_order_acquire);
        const uint64_t read = ring.read.load(std::memory_order_acquire);
        const uint64_t at = connection.sending ? written : read;
        const size_t place = at % kRingBytes;
        const size_t room = connection.sending ? kRingBytes - (written - read) : written - read;
        const size_t count = std::min({room, bytes - *done, kPieceBytes, kRingBytes - place});
        if (count == 0) {
            return false;
        }
        unsigned char* const own = static_cast<unsigned char*>(data) + *done;
        if (connection.sending) {
            memcpy(ring.bytes + place, own, count);
        } else {
            memcpy(own, ring.bytes + place, count);
        }
        *done += count;
        auto& cursor = connection.sending ? ring.written : ring.read;
        cursor.store(at + count, std::memory_order_release);
    }
    return true;
}

// Moves what can be moved of the posted messages, the oldest first.
void progress(Connection& connection) {
    for (; connection.moved < connection.posted; ++connection.moved) {
        Request& request = connection.request(connection.moved);
        if (!move(connection, &request.header, sizeof(Header), &request.header_moved)) {
            return;
        }
        if (request.header.bytes > request.capacity) {
            log_warn("net: a message of %lu bytes came for a receive of %lu",
                     static_cast<unsigned long>(request.header.bytes),
                     static_cast<unsigned long>(request.capacity));
            request.failed = true;
            return;
        }
        if (!move(connection, request.data, request.header.bytes, &request.data_moved)) {
            return;
        }
    }
}

Request* post(Connection& connection, void* data, size_t bytes) {
    Request& request = connection.request(connection.posted);
    if (request.in_use) {
        return nullptr;
    }
    ++connection.posted;
    request = {};
    request.connection = &connection;
    request.in_use = true;
    request.data = static_cast<unsigned char*>(data);
    request.capacity = bytes;
    return &request;
}

// Room in the card's queue, or the moment at which to ask again.
bool may_send_now(Connection& connection, uint64_t now) {
    if (connection.shaper == nullptr) {
        return true;
    }
    const uint64_t free_ns = connection.shaper->egress_free_ns(connection.node);
    if (free_ns <= now + kQueueAheadNs) {
        return true;
    }
    if (connection.refused_since_ns == 0) {
        connection.refused_since_ns = now;
    }
    hint_wake_at(free_ns - kQueueAheadNs);
    return false;
}

WireSlot reserve_egress(Connection& connection, uint64_t now, uint64_t bytes) {
    uint64_t earliest = now;
    if (connection.refused_since_ns != 0) {
        earliest = std::max(connection.refused_since_ns, now - kMaxCreditNs);
    }
    const WireSlot slot = connection.shaper->reserve_egress(connection.node, earliest, bytes);
    if (slot.finish_ns >= now) {
        connection.refused_since_ns = 0;  // caught up
    }
    return slot;
}

// True when the message has also crossed both cards and the wire.
bool wire_time_over(Request& request, uint64_t now) {
    const Connection& connection = *request.connection;
    if (connection.shaper == nullptr) {
        return true;
    }
    if (!connection.sending && !request.ingress_reserved) {
        // The receiving card is claimed when the first bit comes, not earlier: messages of several
        // senders then share it in the order of their bits.
        if (now < request.header.start_ns) {
            hint_wake_at(request.header.start_ns);
            return false;
        }
        Shaper& shaper = *connection.shaper;
        const WireSlot slot =
            shaper.reserve_ingress(connection.node, request.header.start_ns, request.header.bytes);
        request.ingress_reserved = true;
        request.done_at_ns = slot.finish_ns + shaper.spec().latency_ns;
    }
    if (now < request.done_at_ns) {
        hint_wake_at(request.done_at_ns);
        return false;
    }
    return true;
}

ncclResult_t net_init(
    void** context, uint64_t, net::NetCommConfigV11*, net::DebugLogger, net::ProfilerCallback) {
    const Result<Shaper*> shaper = job_shaper("");
    if (!shaper.ok()) {
        return to_nccl(shaper.status());
    }
    *context = new Context{shaper.value()};
    return ncclSuccess;
}

ncclResult_t net_finalize(void* context) {
    delete static_cast<Context*>(context);
    return ncclSuccess;
}

ncclResult_t net_devices(int* count) {
    *count = std::max(1, device_count());
    return ncclSuccess;
}

ncclResult_t net_listen(void* context, int device, void* handle, void** listen_comm) {
    const Handle made{kHandleMagic, random_u64(), getpid(), 0, node_of_net_device(device)};
    Socket descriptor(memfd_create(ring_name(made.token).c_str(), MFD_CLOEXEC));
    if (!descriptor.valid() || ftruncate(descriptor.fd(), sizeof(Ring)) != 0) {
        return to_nccl({Code::kSystemError, std::string("net: making a ring: ") + strerror(errno)});
    }
    Result<RingView> ring = map_ring(descriptor.fd());
    if (!ring.ok()) {
        return to_nccl(ring.status());
    }
    auto* const named = static_cast<Handle*>(handle);
    *named = made;
    named->descriptor = descriptor.fd();
    *listen_comm = new Listener{std::move(ring).value(), std::move(descriptor),
                                static_cast<Context*>(context), made.node};
    return ncclSuccess;
}

Result<RingView> open_ring(const Handle& handle) {
    const std::string path =
        "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
    std::error_code error;
    // A rank that has given up may have given the descriptor's number to another file.
    if (std::filesystem::read_symlink(path, error).string().find(ring_name(handle.token)) ==
        std::string::npos) {
        return Status{Code::kRemoteError, "net: the listener of " + path + " is gone"};
    }
    const Socket descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!descriptor.valid()) {
        return Status{Code::kRemoteError, "net: opening " + path + ": " + strerror(errno)};
    }
    return map_ring(descriptor.fd());
}

ncclResult_t net_connect(
    void* context, int device, void* opaque, void** send_comm, net::NetDeviceHandle**) {
    *send_comm = nullptr;
    const auto& handle = *static_cast<const Handle*>(opaque);
    if (handle.magic != kHandleMagic) {
        return to_nccl({Code::kInternalError, "net: this handle is not of the emulator's network"});
    }
    Result<RingView> ring = open_ring(handle);
    if (!ring.ok()) {
        return to_nccl(ring.status());
    }
    const int node = node_of_net_device(device);
    ring.value()->sender = node + 1;
    *send_comm = make_connection(std::move(ring).value(), *static_cast<Context*>(context), true,
                                 node, handle.node);
    return ncclSuccess;
}

ncclResult_t net_accept(void* listen_comm, void** recv_comm, net::NetDeviceHandle**) {
    auto& listener = *static_cast<Listener*>(listen_comm);
    const int sender = listener.ring != nullptr ? listener.ring->sender.load() : 0;
    *recv_comm = sender == 0 ? nullptr
                             : make_connection(std::move(listener.ring), *listener.context, false,
                                               listener.node, sender - 1);
    return ncclSuccess;
}

ncclResult_t net_close_listen(void* listen_comm) {
    delete static_cast<Listener*>(listen_comm);
    return ncclSuccess;
}

ncclResult_t net_isend(
    void* send_comm, void* data, size_t bytes, int, void*, void*, void** out_request) {
    auto& connection = *static_cast<Connection*>(send_comm);
    const uint64_t now = now_ns();
    Request* request = may_send_now(connection, now) ? post(connection, data, bytes) : nullptr;
    if (request != nullptr) {
        request->header.bytes = bytes;
        if (connection.shaper != nullptr) {
            const WireSlot slot = reserve_egress(connection, now, bytes);
            request->header.start_ns = slot.start_ns;
            request->done_at_ns = slot.finish_ns;
        }
    }
    progress(connection);
    *out_request = request;
    return ncclSuccess;
}

ncclResult_t net_irecv(
    void* recv_comm, int count, void** data, size_t* bytes, int*, void**, void**, void** request) {
    if (count != 1) {
        return ncclInternalError;
    }
    *request = post(*static_cast<Connection*>(recv_comm), data[0], bytes[0]);
    return ncclSuccess;
}

ncclResult_t net_test(void* opaque, int* done, int* bytes) {
    auto& request = *static_cast<Request*>(opaque);
    *done = 0;
    progress(*request.connection);
    if (request.failed) {
        return ncclRemoteError;
    }
    // The card is claimed in wire order, also while the payload is still being copied.
    if (request.header_here() && wire_time_over(request, now_ns()) && request.moved()) {
        *done = 1;
        request.in_use = false;
        if (bytes != nullptr) {
            *bytes = static_cast<int>(request.header.bytes);
        }
    }
    return ncclSuccess;
}

ncclResult_t net_close(void* comm) {
    delete static_cast<Connection*>(comm);
    return ncclSuccess;
}

// What link.h and transport.h call.
constexpr net::NetV11 builtin_table() {
    net::NetV11 table{};
    table.name = "Emulator";
    table.init = net_init;
    table.devices = net_devices;
    table.listen = net_listen;
    table.connect = net_connect;
    table.accept = net_accept;
    table.isend = net_isend;
    table.irecv = net_irecv;
    table.test = net_test;
    table.close_send = table.close_recv = net_close;
    table.close_listen = net_close_listen;
    table.finalize = net_finalize;
    return table;
}
constexpr net::NetV11 kBuiltinNet = builtin_table();

}  // namespace

const net::NetV11* builtin_net() noexcept {
    return &kBuiltinNet;
}

}  // namespace slimwire::emu
