// Small non-blocking sockets for handshakes, and which address to listen at. No call waits.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::net {

union SocketAddress {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
};

[[nodiscard]] std::string to_string(const SocketAddress& address);

class Socket {
  public:
    Socket() = default;
    explicit Socket(int fd) noexcept : fd_(fd) {}
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&& other) noexcept;
    ~Socket() { reset(); }
    [[nodiscard]] int fd() const noexcept { return fd_; }
    [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
    void reset() noexcept;

  private:
    int fd_ = -1;
};

// Listens at `address` (port 0); *address then has the port.
Result<Socket> listen_at(SocketAddress* address);
// An invalid socket when nobody waits.
Result<Socket> accept_waiting(const Socket& listener, SocketAddress* peer);
// Begins to connect.
Result<Socket> start_connect(const SocketAddress& address);
enum class ConnectState { kPending, kReady, kFailed };
// kFailed sets *error to an errno.
[[nodiscard]] ConnectState connect_state(const Socket& socket, int* error) noexcept;
// Whether the peer will send nothing more, whatever has yet to be read.
[[nodiscard]] bool has_hung_up(const Socket& socket) noexcept;

// Bytes moved now: -1 when the connection is over (*end_of_stream tells an orderly end from an
// error, errno the error).
[[nodiscard]] long receive_some(int fd, void* data, size_t bytes, bool* end_of_stream) noexcept;
[[nodiscard]] long send_some(int fd, const void* data, size_t bytes) noexcept;

// A running network interface with the address that it would be reached at.
struct Interface {
    std::string name;
    SocketAddress address;
    bool loopback;
};
// One entry for each, IPv4 before IPv6, global before link-local addresses.
Result<std::vector<Interface>> running_interfaces();

// NCCL's interface lists: "eth,ib" by prefix, "=eth0" exactly, "^docker" all but those.
[[nodiscard]] bool interface_matches(std::string_view list, std::string_view name);

}  // namespace slimwire::net
