// A network plugin for tests, written against the interface's contract alone: TCP on loopback, one
// message after the other, receives larger than their message, and now and then "try again". At
// finalize it appends what it carried to the file $TEST_NET_LOG. Counts every call's balance
// (registrations, requests, connections) so that a leak shows.
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

#include "plugin/net/abi/net_v11.h"

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

ncclResult_t get_properties(int, NetPropertiesV11* properties) {
    *properties = {};
    properties->ptr_support = kPtrHost;
    properties->max_recvs = 1;
    return ncclSuccess;
}

ncclResult_t listen_here(void*, int device, void* opaque, void** listen_comm) {
    Handle handle{};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    handle.address.sin_family = AF_INET;
    handle.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof handle.address;
    auto* address = reinterpret_cast<sockaddr*>(&handle.address);
    if (device != 0 || bind(fd, address, size) != 0 || listen(fd, 1) != 0 ||
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

ncclResult_t reg_mr(void*, void* data, size_t bytes, int type, void** mhandle) {
    if (data == nullptr || bytes == 0 || type != kPtrHost) {
        return ncclInvalidArgument;
    }
    ++g_registered;
    *mhandle = data;
    return ncclSuccess;
}

ncclResult_t dereg_mr(void*, void* mhandle) {
    g_registered -= mhandle != nullptr ? 1 : 1000;
    return ncclSuccess;
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
    return bytes > 0 && mhandle != data ? ncclInvalidArgument : enqueue(comm, data, bytes, request);
}

ncclResult_t irecv(void* comm,
                   int count,
                   void** data,
                   size_t* bytes,
                   int*,
                   void** mhandles,
                   void**,
                   void** request) {
    const bool bad = count != 1 || (bytes[0] > 0 && mhandles[0] != data[0]);
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

}  // namespace

extern "C" __attribute__((visibility("default"))) const NetV11 ncclNetPlugin_v11;
extern "C" const NetV11 ncclNetPlugin_v11 = {
    .name = "TestTcp",
    .init = init,
    .devices = devices,
    .get_properties = get_properties,
    .listen = listen_here,
    .connect = connect_to,
    .accept = accept_one,
    .reg_mr = reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = nullptr,
    .test = test,
    .close_send = close_connection,
    .close_recv = close_connection,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_vdevice = nullptr,
    .finalize = finalize,
    .set_net_attr = nullptr,
};
