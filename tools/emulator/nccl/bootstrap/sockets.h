// TCP sockets for bootstrap: small helpers with bounded waiting. Thread contract: values; one
// thread uses a socket at a time unless it says otherwise.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "codecs/base/descriptor.h"
#include "codecs/base/status.h"

namespace slimwire::emu {

// An address as it travels in unique ids and handles: 28 bytes hold IPv4 and IPv6.
union SocketAddress {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
};
static_assert(sizeof(SocketAddress) == 28);

[[nodiscard]] std::string to_string(const SocketAddress& address);
[[nodiscard]] socklen_t address_bytes(const SocketAddress& address) noexcept;

using Socket = Descriptor;

// Address of the bootstrap interface, port 0: NCCL_SOCKET_IFNAME (names match by prefix, "=name"
// exactly, "^name" excludes; lists by comma), else loopback.
Result<SocketAddress> bootstrap_interface();

// Listens on a free port of the bootstrap interface; `address` receives where. Non-blocking.
Result<Socket> listen_on_bootstrap_interface(SocketAddress* address);

// Connects within `timeout_ms`, trying again while the other side refuses.
Result<Socket> connect_to(const SocketAddress& address, int timeout_ms);

// Accepts one waiting connection; an invalid socket when there is none. Non-blocking result.
[[nodiscard]] Socket accept_waiting(const Socket& listener) noexcept;

// Whole-buffer transfers, bounded by `timeout_ms` in all.
Status send_all(int fd, const void* data, size_t bytes, int timeout_ms);
Status receive_all(int fd, void* data, size_t bytes, int timeout_ms);

// True when at least `bytes` can be read at once.
[[nodiscard]] bool has_bytes(const Socket& socket, size_t bytes) noexcept;
// True when the other side closed and nothing is left to read.
[[nodiscard]] bool hung_up(const Socket& socket) noexcept;
// Waits at most `timeout_ms` until one of `descriptors` can be read or was closed.
void wait_readable(const std::vector<int>& descriptors, int timeout_ms) noexcept;

// A number nobody else can guess.
[[nodiscard]] uint64_t random_u64();

}  // namespace slimwire::emu
