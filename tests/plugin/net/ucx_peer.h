// The other process of the tests with peers that die or stop.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "plugin/net/wire.h"

namespace slimwire::net {

inline constexpr size_t kPeerMessage = 1 << 20;

// On loopback.
Result<std::unique_ptr<Wire>> open_peer_wire(const std::string& transports);

// Plays it: sends or receives messages of kPeerMessage until a signal ends it. `role`: send or
// receive; `step`: connect, idle or flow. The handle comes by stdin or goes out by stdout, then an
// R.
int ucx_peer(const std::string& transports, const std::string& role, const std::string& step);

}  // namespace slimwire::net
