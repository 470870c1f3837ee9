// The newest version of NCCL's network table in a library, as version 11, which is what the
// transport calls.
#pragma once

#include "plugin/net/abi/net_v11.h"
#include "tools/emulator/nccl/plugins/plugin_library.h"

namespace slimwire::emu {

struct AdaptedNet {
    const net::NetV11* table = nullptr;  // null: the library exports none
    int version = 0;
};

// Version 12 of `library`, else 11. One table of version 12 can be in use at a time: the one that
// was asked for last.
[[nodiscard]] AdaptedNet adapt_net(const PluginLibrary& library);

}  // namespace slimwire::emu
