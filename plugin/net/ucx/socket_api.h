// UCX's functions, as far as the wire uses them, over a TCP socket for each connection: for
// addresses that UCX has no transport for, those of the link alone. A worker's address is a
// WireHandle; its sender says the cookie of that, then of each message its tag, its length (8 bytes
// each) and its bytes. Contracts are UCX's own (ucp.h): a worker has one thread at a time.
#pragma once

#include <string>

#include "plugin/net/ucx/ucx_api.h"

namespace slimwire::net {

[[nodiscard]] const UcxApi& socket_api() noexcept;
// Whether a worker's address is of these workers.
[[nodiscard]] bool of_socket_api(const std::string& worker_address) noexcept;

}  // namespace slimwire::net
