#include "tools/emulator/nccl/bootstrap/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/plugins/plugin_library.h"

namespace slimwire::emu {
namespace {

Status system_error(const std::string& what) {
    return {Code::kSystemError, what + ": " + strerror(errno)};
}

// Milliseconds left until `deadline_ns`, for poll().
int milliseconds_left(uint64_t deadline_ns) {
    const uint64_t now = now_ns();
    return now >= deadline_ns ? 0 : static_cast<int>((deadline_ns - now + 999'999) / 1'000'000);
}

bool wait_for(int fd, short events, uint64_t deadline_ns) {
    pollfd entry{fd, events, 0};
    while (true) {
        const int ready = poll(&entry, 1, milliseconds_left(deadline_ns));
        if (ready > 0) {
            return true;
        }
        if (ready == 0 && now_ns() >= deadline_ns) {
            return false;
        }
        if (ready < 0 && errno != EINTR) {
            return false;
        }
    }
}

void set_options(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// NCCL's interface lists: "eth,ib" by prefix, "=eth0" exactly, "^docker" all but.
bool interface_matches(const char* list, const std::string& name) {
    const bool excluded = *list == '^';
    const bool exact = *list == '=';
    const std::vector<std::string> entries = list_entries(excluded || exact ? list + 1 : list);
    return excluded != std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
               return exact ? name == entry : name.starts_with(entry);
           });
}

}  // namespace

std::string to_string(const SocketAddress& address) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (address.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof text);
        return std::string("[") + text + "]:" + std::to_string(ntohs(address.v6.sin6_port));
    }
    inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(ntohs(address.v4.sin_port));
}

socklen_t address_bytes(const SocketAddress& address) noexcept {
    return address.any.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

Result<SocketAddress> bootstrap_interface() {
    const char* const wanted = getenv("NCCL_SOCKET_IFNAME");
    SocketAddress address{};
    if (wanted == nullptr || *wanted == '\0') {
        address.v4.sin_family = AF_INET;
        address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return address;
    }
    ifaddrs* interfaces = nullptr;
    if (getifaddrs(&interfaces) != 0) {
        return system_error("network interfaces");
    }
    bool found = false;
    for (const ifaddrs* entry = interfaces; entry != nullptr && !found; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 ||
            !interface_matches(wanted, entry->ifa_name)) {
            continue;
        }
        if (entry->ifa_addr->sa_family == AF_INET) {
            memcpy(&address.v4, entry->ifa_addr, sizeof(sockaddr_in));
            found = true;
        } else if (entry->ifa_addr->sa_family == AF_INET6) {
            memcpy(&address.v6, entry->ifa_addr, sizeof(sockaddr_in6));
            found = true;
        }
    }
    freeifaddrs(interfaces);
    if (!found) {
        return Status(Code::kSystemError, "NCCL_SOCKET_IFNAME='" + std::string(wanted) +
                                              "': no interface of that name is up");
    }
    return address;
}

Result<Socket> listen_on_bootstrap_interface(SocketAddress* address) {
    SLIMWIRE_TRY_ASSIGN(SocketAddress bound, bootstrap_interface());
    Socket listener(socket(bound.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t bytes = address_bytes(bound);
    if (!listener.valid() || bind(listener.fd(), &bound.any, bytes) != 0 ||
        listen(listener.fd(), 1024) != 0 || getsockname(listener.fd(), &bound.any, &bytes) != 0) {
        return system_error("bootstrap listener on " + to_string(bound));
    }
    *address = bound;
    return listener;
}

Result<Socket> connect_to(const SocketAddress& address, int timeout_ms) {
    const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000u;
    while (true) {
        Socket connection(
            socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!connection.valid()) {
            return system_error("socket");
        }
        set_options(connection.fd());
        int error = connect(connection.fd(), &address.any, address_bytes(address)) == 0 ? 0 : errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            socklen_t bytes = sizeof error;
            if (wait_for(connection.fd(), POLLOUT, deadline_ns)) {
                getsockopt(connection.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
            }
        }
        if (error == 0) {
            return connection;
        }
        if (now_ns() >= deadline_ns) {
            errno = error;
            return system_error("connection to " + to_string(address));
        }
        sleep_until_ns(now_ns() + 10'000'000);
    }
}

Socket accept_waiting(const Socket& listener) noexcept {
    Socket connection(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
        set_options(connection.fd());
    }
    return connection;
}

Status send_all(int fd, const void* data, size_t bytes, int timeout_ms) {
    const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000u;
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            next += sent;
            bytes -= static_cast<size_t>(sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(fd, POLLOUT, deadline_ns)) {
                return {Code::kSystemError, "bootstrap send: timed out"};
            }
        } else if (errno != EINTR) {
            return system_error("bootstrap send");
        }
    }
    return {};
}

Status receive_all(int fd, void* data, size_t bytes, int timeout_ms) {
    const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000u;
    char* next = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t received = recv(fd, next, bytes, MSG_DONTWAIT);
        if (received > 0) {
            next += received;
            bytes -= static_cast<size_t>(received);
        } else if (received == 0) {
            return {Code::kRemoteError, "bootstrap receive: the other side closed the connection"};
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(fd, POLLIN, deadline_ns)) {
                return {Code::kSystemError, "bootstrap receive: timed out"};
            }
        } else if (errno != EINTR) {
            return {Code::kRemoteError, std::string("bootstrap receive: ") + strerror(errno)};
        }
    }
    return {};
}

bool has_bytes(const Socket& socket, size_t bytes) noexcept {
    char peeked[512];
    const ssize_t found =
        recv(socket.fd(), peeked, std::min(bytes, sizeof peeked), MSG_PEEK | MSG_DONTWAIT);
    return found == static_cast<ssize_t>(std::min(bytes, sizeof peeked));
}

bool hung_up(const Socket& socket) noexcept {
    char byte = 0;
    const ssize_t found = recv(socket.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return found == 0 || (found < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void wait_readable(const std::vector<int>& descriptors, int timeout_ms) noexcept {
    std::vector<pollfd> entries;
    for (const int fd : descriptors) {
        entries.push_back({fd, POLLIN, 0});
    }
    (void)poll(entries.data(), entries.size(), timeout_ms);
}

uint64_t random_u64() {
    uint64_t value = 0;
    while (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    }
    return value;
}

}  // namespace slimwire::emu
