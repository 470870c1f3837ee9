// Small non-blocking sockets for handshakes. No call waits.
#pragma once

#include <cstddef>

#include "codecs/base/descriptor.h"
#include "codecs/base/status.h"
#include "collectives/call/interfaces.h"

namespace slimwire::net {

using Socket = Descriptor;

// Listens at `address` (port 0); *address then has the port.
Result<Socket> listen_at(SocketAddress* address);
// An invalid socket when nobody waits.
Result<Socket> accept_waiting(const Socket& listener, SocketAddress* peer);
// Begins to connect.
Result<Socket> start_connect(const SocketAddress& address);
// EINPROGRESS until it is connected, then 0; else why it is not.
[[nodiscard]] int connect_error(const Socket& socket) noexcept;
// From now on a peer whose machine is gone without a word is noticed after half a minute.
void limit_silence(const Socket& socket) noexcept;
// Whether the peer will send nothing more, whatever has yet to be read.
[[nodiscard]] bool has_hung_up(const Socket& socket) noexcept;

// Bytes moved now: -1 when the connection is over (*end_of_stream tells an orderly end from an
// error, errno the error).
[[nodiscard]] long receive_some(int fd, void* data, size_t bytes, bool* end_of_stream) noexcept;
[[nodiscard]] long send_some(int fd, const void* data, size_t bytes) noexcept;

}  // namespace slimwire::net
