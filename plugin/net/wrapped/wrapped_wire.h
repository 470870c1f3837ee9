// The Wire over another NCCL net plugin (SLIMWIRE_NET_INNER): whoever needs EFA's or a vendor's
// transport keeps it, and slimwire compresses above it.
//
// Each lane is a connection of the inner plugin, made by connecting twice to one inner handle; both
// say a hello first {magic, version, connection, lane, cookie}, by which the listener pairs them
// and refuses strangers with one log line. The cookie travels in the end of NCCL's 128 bytes if the
// inner plugin leaves that free, which most do.
#pragma once

#include <memory>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

// kNotFound: no such library, no table or no device in it. kInvalidArgument: it is slimwire itself,
// or needs code of its own on the GPU.
Result<std::unique_ptr<Wire>> open_wrapped_wire(const std::string& library, DebugLogger log);

}  // namespace slimwire::net
