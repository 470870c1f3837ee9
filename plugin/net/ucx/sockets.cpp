#include "plugin/net/ucx/sockets.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace slimwire::net {
namespace {

constexpr int kBacklog = 4096;

Status system_error(const std::string& what) {
    return {Code::kSystemError, what + ": " + strerror(errno)};
}

socklen_t bytes_of(const SocketAddress& address) {
    return address.any.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

constexpr int kIdleS = 15, kBetweenS = 3, kProbes = 5;

void set_options(int fd) {
    const int on = 1, idle_s = kIdleS, between_s = kBetweenS, probes = kProbes;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

Result<Socket> open_socket(int family) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
        return system_error("a socket");
    }
    set_options(socket.fd());
    return socket;
}

}  // namespace

Result<Socket> listen_at(SocketAddress* address) {
    SLIMWIRE_TRY_ASSIGN(Socket socket, open_socket(address->any.sa_family));
    socklen_t length = bytes_of(*address);
    if (bind(socket.fd(), &address->any, length) != 0 || listen(socket.fd(), kBacklog) != 0 ||
        getsockname(socket.fd(), &address->any, &length) != 0) {
        return system_error("listening at " + to_string(*address));
    }
    return socket;
}

Result<Socket> accept_waiting(const Socket& listener, SocketAddress* peer) {
    *peer = {};
    socklen_t length = sizeof *peer;
    Socket socket(accept4(listener.fd(), &peer->any, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
        set_options(socket.fd());
        return socket;
    }
    switch (errno) {
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
            return system_error("accepting a connection");
        default:
            return Socket();  // nobody, or somebody who has left again
    }
}

Result<Socket> start_connect(const SocketAddress& address) {
    SLIMWIRE_TRY_ASSIGN(Socket socket, open_socket(address.any.sa_family));
    if (connect(socket.fd(), &address.any, bytes_of(address)) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        return Status(Code::kRemoteError,
                      "connecting to " + to_string(address) + ": " + strerror(errno));
    }
    return socket;
}

int connect_error(const Socket& socket) noexcept {
    pollfd entry{socket.fd(), POLLOUT, 0};
    if (poll(&entry, 1, 0) <= 0) {
        return EINPROGRESS;
    }
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Keepalive asks only on sockets without bytes under way. For the others the system tries again for
// a quarter of an hour, unless it is told how long.
void limit_silence(const Socket& socket) noexcept {
    const unsigned limit_ms = 1000 * (kIdleS + kBetweenS * kProbes);
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

bool has_hung_up(const Socket& socket) noexcept {
    pollfd look{socket.fd(), POLLRDHUP, 0};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

long receive_some(int fd, void* data, size_t bytes, bool* end_of_stream) noexcept {
    *end_of_stream = false;
    while (true) {
        const ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
        if (got > 0) {
            return got;
        }
        if (got == 0) {
            *end_of_stream = true;
            return -1;
        }
        if (errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        }
    }
}

long send_some(int fd, const void* data, size_t bytes) noexcept {
    while (true) {
        const ssize_t sent = send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            return sent;
        }
        if (errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        }
    }
}

}  // namespace slimwire::net
