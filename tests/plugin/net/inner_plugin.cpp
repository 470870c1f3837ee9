// A net plugin of somebody else, for tests: TCP, one message after the other, receives larger than
// their message, and now and then "try again". INNER_VERSION (8 to 12) is the one table it exports.
// It listens on the address in $TEST_NET_ADDRESS, else on loopback, so that it also works between
// network namespaces. At finalize it appends what it carried to the file $TEST_NET_LOG; it counts
// every call's balance (registrations, requests, connections), so that a leak shows.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "plugin/net/abi/net_v10.h"
#include "plugin/net/abi/net_v11.h"
#include "plugin/net/abi/net_v12.h"
#include "plugin/net/abi/net_v8.h"
#include "plugin/net/abi/net_v9.h"

namespace {

using namespace slimwire::net;

std::atomic<long> g_bytes{0}, g_messages{0}, g_registered{0}, g_open{0}, g_requests{0};

struct Connection;
struct Request {
    Connection* connection;
    char* data;
    uint64_t size;      // of the message; a receive learns it from the stream
    uint64_t capacity;  // of the buffer
    uint64_t moved = 0;
    bool size_known = false;
    bool finished = false;
};

struct Connection {
    int fd;
    bool sending;
    int refusals = 0;
    std::deque<Request*> queue;
};

struct Handle {
    sockaddr_in address;
    int fd_plus_one;  // the connecting side's note
};

ncclResult_t init(void** context, uint64_t, NetCommConfigV11*, DebugLogger log, ProfilerCallback) {
    *context = new int(0);
    log(kLogInfo, 0, __FILE__, __LINE__, "test plugin at work");
    return ncclSuccess;
}

ncclResult_t devices(int* count) {
    *count = 1;
    return ncclSuccess;
}

ncclResult_t listen_here(void*, int device, void* opaque, void** listen_comm) {
    Handle handle{};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    handle.address.sin_family = AF_INET;
    const char* own = getenv("TEST_NET_ADDRESS");
    handle.address.sin_addr.s_addr = own != nullptr ? inet_addr(own) : htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof handle.address;
    auto* address = reinterpret_cast<sockaddr*>(&handle.address);
    if (device != 0 || bind(fd, address, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, address, &size) != 0) {
        return ncclSystemError;
    }
    memcpy(opaque, &handle, sizeof handle);
    *listen_comm = new int(fd);
    ++g_open;
    return ncclSuccess;
}

Connection* make_connection(int fd, bool sending) {
    ++g_open;
    return new Connection{fd, sending, 0, {}};
}

ncclResult_t connect_to(void*, int, void* opaque, void** send_comm, NetDeviceHandle**) {
    auto* handle = static_cast<Handle*>(opaque);
    *send_comm = nullptr;
    if (handle->fd_plus_one == 0) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(fd, reinterpret_cast<sockaddr*>(&handle->address), sizeof handle->address);
        handle->fd_plus_one = fd + 1;
        return ncclSuccess;
    }
    pollfd entry{handle->fd_plus_one - 1, POLLOUT, 0};
    if (poll(&entry, 1, 0) == 1) {
        *send_comm = make_connection(entry.fd, true);
    }
    return ncclSuccess;
}

ncclResult_t accept_one(void* listen_comm, void** recv_comm, NetDeviceHandle**) {
    const int fd =
        accept4(*static_cast<int*>(listen_comm), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    *recv_comm = fd >= 0 ? make_connection(fd, false) : nullptr;
    return ncclSuccess;
}

struct Registration {
    char* data;
    size_t bytes;
};

ncclResult_t reg_mr(void*, void* data, size_t bytes, int type, void** mhandle) {
    if (data == nullptr || bytes == 0 || type != kPtrHost) {
        return ncclInvalidArgument;
    }
    ++g_registered;
    *mhandle = new Registration{static_cast<char*>(data), bytes};
    return ncclSuccess;
}

ncclResult_t dereg_mr(void*, void* mhandle) {
    g_registered -= mhandle != nullptr ? 1 : 1000;
    delete static_cast<Registration*>(mhandle);
    return ncclSuccess;
}

bool covers(const void* mhandle, const void* data, size_t bytes) {
    const auto* known = static_cast<const Registration*>(mhandle);
    const auto* begin = static_cast<const char*>(data);
    return known != nullptr && begin >= known->data && begin + bytes <= known->data + known->bytes;
}

ncclResult_t enqueue(void* opaque, void* data, uint64_t size, void** request) {
    auto* connection = static_cast<Connection*>(opaque);
    *request = nullptr;
    if (connection->queue.size() >= kNetMaxRequests || ++connection->refusals % 5 == 0) {
        return ncclSuccess;  // try again
    }
    auto* made = new Request{connection, static_cast<char*>(data), size, size};
    connection->queue.push_back(made);
    ++g_requests;
    *request = made;
    return ncclSuccess;
}

ncclResult_t isend(
    void* comm, void* data, size_t bytes, int, void* mhandle, void*, void** request) {
    return covers(mhandle, data, bytes) ? enqueue(comm, data, bytes, request) : ncclInvalidArgument;
}

ncclResult_t irecv(void* comm,
                   int count,
                   void** data,
                   size_t* bytes,
                   int*,
                   void** mhandles,
                   void**,
                   void** request) {
    const bool bad = count != 1 || !covers(mhandles[0], data[0], bytes[0]);
    return bad ? ncclInvalidArgument : enqueue(comm, data[0], bytes[0], request);
}

// Moves bytes of one request; true when it is complete. The size goes ahead of the data.
bool advance(Request& request, bool* broken) {
    Connection& connection = *request.connection;
    while (true) {
        char* position = request.size_known
                             ? request.data + request.moved
                             : reinterpret_cast<char*>(&request.size) + request.moved;
        const uint64_t goal = request.size_known ? request.size : sizeof request.size;
        if (request.moved == goal) {
            if (request.size_known) {
                return true;
            }
            request.size_known = true;
            request.moved = 0;
            *broken = request.size > request.capacity;
            if (*broken) {
                return false;
            }
            continue;
        }
        const size_t left = goal - request.moved;
        const ssize_t count = connection.sending ? send(connection.fd, position, left, MSG_NOSIGNAL)
                                                 : recv(connection.fd, position, left, 0);
        if (count <= 0) {
            *broken = count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
            return false;
        }
        request.moved += static_cast<uint64_t>(count);
    }
}

ncclResult_t test(void* opaque, int* done, int* bytes) {
    auto* request = static_cast<Request*>(opaque);
    Connection& connection = *request->connection;
    bool broken = false;
    while (!connection.queue.empty() && advance(*connection.queue.front(), &broken)) {
        connection.queue.front()->finished = true;
        connection.queue.pop_front();
    }
    *done = request->finished ? 1 : 0;
    if (request->finished) {
        broken = false;  // that is for those behind it
        *bytes = static_cast<int>(request->size);
        if (connection.sending) {
            g_bytes += static_cast<long>(request->size);
            ++g_messages;
        }
        --g_requests;
        delete request;
    }
    return broken ? ncclRemoteError : ncclSuccess;
}

ncclResult_t close_connection(void* opaque) {
    auto* connection = static_cast<Connection*>(opaque);
    close(connection->fd);
    for (Request* request : connection->queue) {
        delete request;
        --g_requests;
    }
    delete connection;
    --g_open;
    return ncclSuccess;
}

ncclResult_t close_listen(void* listen_comm) {
    close(*static_cast<int*>(listen_comm));
    delete static_cast<int*>(listen_comm);
    --g_open;
    return ncclSuccess;
}

ncclResult_t finalize(void* context) {
    delete static_cast<int*>(context);
    if (const char* path = getenv("TEST_NET_LOG"); path != nullptr) {
        FILE* file = fopen(path, "a");
        fprintf(file, "bytes %ld messages %ld registered %ld open %ld requests %ld\n",
                g_bytes.load(), g_messages.load(), g_registered.load(), g_open.load(),
                g_requests.load());
        fclose(file);
    }
    return ncclSuccess;
}

#if INNER_VERSION <= 10
void* g_context = nullptr;
int g_inits = 0;

// Once: a second call is an error here.
ncclResult_t init_once(DebugLogger log) {
    return ++g_inits == 1 ? init(&g_context, 0, nullptr, log, nullptr) : ncclInternalError;
}
ncclResult_t old_listen(int device, void* handle, void** comm) {
    return listen_here(g_context, device, handle, comm);
}
#endif
#if INNER_VERSION <= 9
ncclResult_t old_connect(int device, void* handle, void** comm, NetDeviceHandle** offload) {
    return connect_to(g_context, device, handle, comm, offload);
}
#endif

template <class Properties>
ncclResult_t old_properties(int, Properties* properties) {
    *properties = {};
    properties->ptr_support = kPtrHost;
    properties->max_recvs = 1;
    properties->max_comms = 1000;
    properties->speed_mbps = 25000;
    return ncclSuccess;
}

#if INNER_VERSION == 8
ncclResult_t old_isend(void* comm, void* data, int bytes, int tag, void* mhandle, void** request) {
    return bytes < 0
               ? ncclInvalidArgument
               : isend(comm, data, static_cast<size_t>(bytes), tag, mhandle, nullptr, request);
}
ncclResult_t old_irecv(
    void* comm, int count, void** data, int* bytes, int* tags, void** mhandles, void** request) {
    size_t size = static_cast<size_t>(bytes[0]);
    return bytes[0] < 0 ? ncclInvalidArgument
                        : irecv(comm, count, data, &size, tags, mhandles, nullptr, request);
}
#elif INNER_VERSION == 9
ncclResult_t old_isend(
    void* comm, void* data, size_t bytes, int tag, void* mhandle, void** request) {
    return isend(comm, data, bytes, tag, mhandle, nullptr, request);
}
ncclResult_t old_irecv(
    void* comm, int count, void** data, size_t* bytes, int* tags, void** mhandles, void** request) {
    return irecv(comm, count, data, bytes, tags, mhandles, nullptr, request);
}
#elif INNER_VERSION == 10
ncclResult_t old_init(DebugLogger log, ProfilerCallback) {
    return init_once(log);
}
ncclResult_t old_connect(
    int device, NetCommConfigV10* config, void* handle, void** comm, NetDeviceHandle** offload) {
    return config == nullptr ? ncclInvalidArgument
                             : connect_to(g_context, device, handle, comm, offload);
}
#endif

}  // namespace

#define INNER_JOIN(a, b) a##b
#define INNER_NAME(a, b) INNER_JOIN(a, b)
#define INNER_TABLE INNER_NAME(ncclNetPlugin_v, INNER_VERSION)
#define INNER_TYPE INNER_NAME(NetV, INNER_VERSION)

extern "C" __attribute__((visibility("default"))) const INNER_TYPE INNER_TABLE;
extern "C" const INNER_TYPE INNER_TABLE = {
    .name = "TestTcp",
#if INNER_VERSION <= 9
    .init = init_once,
#elif INNER_VERSION == 10
    .init = old_init,
#else
    .init = init,
#endif
    .devices = devices,
    .get_properties = old_properties,
#if INNER_VERSION <= 10
    .listen = old_listen,
    .connect = old_connect,
#else
    .listen = listen_here,
    .connect = connect_to,
#endif
    .accept = accept_one,
    .reg_mr = reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = dereg_mr,
#if INNER_VERSION <= 9
    .isend = old_isend,
    .irecv = old_irecv,
#else
    .isend = isend,
    .irecv = irecv,
#endif
    .iflush = nullptr,
    .test = test,
    .close_send = close_connection,
    .close_recv = close_connection,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
#if INNER_VERSION >= 9
    .make_vdevice = nullptr,
#endif
#if INNER_VERSION >= 11
    .finalize = finalize,
    .set_net_attr = nullptr,
#endif
};
