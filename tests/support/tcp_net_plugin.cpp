// A network plugin for tests, written against the interface's contract alone: TCP, one message
// after the other, receives larger than their message, and now and then "try again". It listens on
// loopback. tcp_net_tables.cpp exports its tables. When the library is closed it appends what it
// has counted to the file $TEST_NET_LOG, so a leak of registrations, requests or connections shows,
// and so does a library that is not closed in order; at each finalize it does the same to
// $TEST_NET_BALANCE.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "plugin/net/abi/tuner.h"
#include "tests/support/tcp_net_plugin.h"

namespace slimwire::test {

using namespace slimwire::net;

Counts& counts() {
    static Counts all;
    return all;
}

bool asked_for(const char* variable) {
    const char* text = getenv(variable);
    return text != nullptr && strcmp(text, "1") == 0;
}

namespace {

// The contract of set_net_attr: nothing but what it was told can be known of a message.
std::atomic<uint32_t> g_told_protocol{~0u};

struct Connection;
struct Registration {
    char* data;
    size_t bytes;
};
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

    std::deque<Request*> queue;  // not finished
    std::set<Request*> open;     // of which nobody was told that they are done
};

struct Handle {
    sockaddr_in address;
    int fd_plus_one;  // the connecting side's note
};

}  // namespace

ncclResult_t init_shared(DebugLogger log, int version) {
    if (asked_for("TEST_NET_BROKEN")) {
        return ncclSystemError;
    }
    if (kOnlyVersion != 0 && kOnlyVersion <= 10 && counts().inits > 0) {
        return ncclInternalError;  // a table without contexts is started once
    }
    ++counts().inits;
    counts().version = version;
    log(asked_for("TEST_NET_WARNS") ? kLogWarn : kLogInfo, 0, __FILE__, __LINE__,
        "test plugin at work");
    return ncclSuccess;
}

ncclResult_t init(void** context, uint64_t, NetCommConfigV11*, DebugLogger log, ProfilerCallback) {
    *context = nullptr;
    const ncclResult_t result = init_shared(log, 11);
    if (result == ncclSuccess) {
        *context = new int(0);
    }
    return result;
}

namespace {

ncclResult_t devices(int* count) {
    *count = 1;
    return ncclSuccess;
}

ncclResult_t get_properties(int, NetPropertiesV11* properties) {
    *properties = {};
    properties->ptr_support = kPtrHost;
    properties->max_recvs = 1;
    properties->max_comms = 1000;
    properties->speed_mbps = 25000;
    properties->max_p2p_bytes = properties->max_coll_bytes = size_t{1} << 30;
    return ncclSuccess;
}

ncclResult_t listen_here(void*, int device, void* opaque, void** listen_comm) {
    Handle handle{};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    handle.address.sin_family = AF_INET;
    handle.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof handle.address;
    auto* address = reinterpret_cast<sockaddr*>(&handle.address);
    if (device != 0 || bind(fd, address, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, address, &size) != 0) {
        return ncclSystemError;
    }
    memcpy(opaque, &handle, sizeof handle);
    *listen_comm = new int(fd);
    ++counts().open;
    return ncclSuccess;
}

Connection* make_connection(int fd, bool sending) {
    ++counts().open;
    return new Connection{fd, sending, 0, {}, {}};
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
    ++counts().registered;
    *mhandle = new Registration{static_cast<char*>(data), bytes};
    return ncclSuccess;
}

ncclResult_t dereg_mr(void*, void* mhandle) {
    counts().registered -= mhandle != nullptr ? 1 : 1000;
    delete static_cast<Registration*>(mhandle);
    return ncclSuccess;
}

// Whether the message lies in registered memory. One of no bytes need not, but for slimwire.
bool registered(const void* mhandle, const void* data, size_t bytes) {
    if (bytes == 0 && kOnlyVersion == 0) {
        return true;
    }
    const auto* registration = static_cast<const Registration*>(mhandle);
    const auto* first = static_cast<const char*>(data);
    return registration != nullptr && first >= registration->data &&
           first + bytes <= registration->data + registration->bytes;
}

ncclResult_t enqueue(void* opaque, void* data, uint64_t size, void** request) {
    auto* connection = static_cast<Connection*>(opaque);
    *request = nullptr;
    if (connection->queue.size() >= kNetMaxRequests || ++connection->refusals % 5 == 0) {
        return ncclSuccess;  // try again
    }
    auto* made = new Request{connection, static_cast<char*>(data), size, size};
    connection->queue.push_back(made);
    connection->open.insert(made);
    ++counts().requests;
    *request = made;
    return ncclSuccess;
}

// Whether a message looks like protocol LL: the second and fourth word of every line are one
// number.
bool looks_like_ll(const char* data, size_t bytes) {
    uint32_t line[4];
    uint32_t flag = 0;
    for (size_t at = 0; at + sizeof line <= bytes; at += sizeof line) {
        memcpy(line, data + at, sizeof line);
        flag = at == 0 ? line[1] : flag;
        if (line[1] != flag || line[3] != flag || flag == 0) {
            return false;
        }
    }
    return bytes >= sizeof line && bytes % sizeof line == 0;
}

// The same for LL128: the last eight bytes of 128.
bool looks_like_ll128(const char* data, size_t bytes) {
    uint64_t flag = 0;
    for (size_t at = 0; at + 128 <= bytes; at += 128) {
        uint64_t found = 0;
        memcpy(&found, data + at + 120, sizeof found);
        flag = at == 0 ? found : flag;
        if (found != flag || flag == 0 || flag > 1'000'000) {
            return false;
        }
    }
    return bytes >= 128 && bytes % 128 == 0;
}

ncclResult_t isend(
    void* comm, void* data, size_t bytes, int, void* mhandle, void*, void** request) {
    if (!registered(mhandle, data, bytes)) {
        return ncclInvalidArgument;
    }
    const ncclResult_t result = enqueue(comm, data, bytes, request);
    if (*request != nullptr) {
        const char* text = static_cast<const char*>(data);
        counts().ll += looks_like_ll(text, bytes) ? 1 : 0;
        counts().ll128 += looks_like_ll128(text, bytes) ? 1 : 0;
        counts().largest = std::max<long>(counts().largest, static_cast<long>(bytes));
        counts().told_ll += g_told_protocol == 1u << kProtocolLl ? 1 : 0;
    }
    return result;
}

ncclResult_t irecv(void* comm,
                   int count,
                   void** data,
                   size_t* bytes,
                   int*,
                   void** mhandles,
                   void**,
                   void** request) {
    if (count != 1 || !registered(mhandles[0], data[0], bytes[0])) {
        return ncclInvalidArgument;
    }
    const bool optional = *request == kOptionalReceiveCompletion;
    const ncclResult_t result = enqueue(comm, data[0], bytes[0], request);
    counts().optional += optional && *request != nullptr ? 1 : 0;
    return result;
}

ncclResult_t set_net_attr(void*, NetAttrV11* attributes) {
    ++counts().attributes;
    g_told_protocol = attributes->proto;
    return ncclSuccess;
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
        counts().larger_receives +=
            !connection.sending && request->capacity > request->size ? 1 : 0;
        *bytes = static_cast<int>(request->size);
        if (connection.sending) {
            counts().bytes += static_cast<long>(request->size);
            ++counts().messages;
        }
        --counts().requests;
        connection.open.erase(request);
        delete request;
    }
    return broken ? ncclRemoteError : ncclSuccess;
}

ncclResult_t close_connection(void* opaque) {
    auto* connection = static_cast<Connection*>(opaque);
    close(connection->fd);
    if (kOnlyVersion != 0) {  // slimwire closes to end what is under way; from others it is a leak
        for (Request* request : connection->open) {
            delete request;
            --counts().requests;
        }
    }
    delete connection;
    --counts().open;
    return ncclSuccess;
}

ncclResult_t close_listen(void* listen_comm) {
    close(*static_cast<int*>(listen_comm));
    delete static_cast<int*>(listen_comm);
    --counts().open;
    return ncclSuccess;
}

// Appends what has been counted to the file that `variable` names.
void write_counts(const char* variable) {
    const char* path = getenv(variable);
    if (path == nullptr || counts().inits == 0) {
        return;
    }
    FILE* file = fopen(path, "a");
    const Counts& all = counts();
    const std::pair<const char*, long> values[] = {
        {"bytes", all.bytes},
        {"messages", all.messages},
        {"registered", all.registered},
        {"open", all.open},
        {"requests", all.requests},
        {"inits", all.inits},
        {"finalizes", all.finalizes},
        {"version", all.version},
        {"ll", all.ll},
        {"ll128", all.ll128},
        {"told_ll", all.told_ll},
        {"largest", all.largest},
        {"optional", all.optional},
        {"attributes", all.attributes},
        {"larger_receives", all.larger_receives},
        {"tuned", all.tuned},
        {"tuners_open", all.tuners_open},
    };
    for (const auto& [name, value] : values) {
        fprintf(file, "%s %ld ", name, value);
    }
    fprintf(file, "\n");
    fclose(file);
}

// When the library is closed.
struct Report {
    ~Report() { write_counts("TEST_NET_LOG"); }
};
const Report g_report;

}  // namespace

ncclResult_t finalize(void* context) {
    ++counts().finalizes;
    delete static_cast<int*>(context);
    write_counts("TEST_NET_BALANCE");
    return ncclSuccess;
}

const NetV11& table_v11() {
    static const NetV11 table = {{.name = "TestTcp",
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
                                  .irecv_consumed = nullptr},
                                 nullptr,
                                 finalize,
                                 set_net_attr};
    return table;
}

}  // namespace slimwire::test
