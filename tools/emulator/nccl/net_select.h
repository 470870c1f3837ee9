// Which network table carries traffic between nodes: a plugin named by NCCL_NET_PLUGIN, found as
// NCCL finds it, else the built-in one. Thread contract: any thread; the choice is made once.
#pragma once

#include "plugin/net/abi/net_v11.h"

namespace slimwire::emu {

// NCCL_NET_PLUGIN is a list by comma, tried in order: each entry as a library, then as
// libnccl-net-<entry>.so; "none" and an unset variable mean the built-in network. The library must
// export ncclNetPlugin_v11; where NCCL_NET is set, the table's name must equal it (any case). What
// does not fit is passed over with an INFO line, as NCCL does.
[[nodiscard]] const net::NetV11* inter_node_net();

// The logger handed to tables: NCCL_DEBUG's lines.
void plugin_log(
    net::LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);

}  // namespace slimwire::emu
