// Older and newer versions of NCCL's network table as version 11, which is what the transport
// calls. Versions before 11 know no contexts: they are initialised once for all communicators and
// have nothing to finalise; 8 counts bytes as int.
#pragma once

#include "plugin/net/abi/net_v11.h"
#include "tools/emulator/nccl/plugin_library.h"

namespace slimwire::emu {

struct AdaptedNet {
    const net::NetV11* table = nullptr;  // null: the library exports none
    int version = 0;
};

// The newest table of `library`, or that of the version `only` when it is not 0. As in NCCL, one
// table of each version can be in use at a time: the one that was asked for last.
[[nodiscard]] AdaptedNet adapt_net(const PluginLibrary& library, int only);

}  // namespace slimwire::emu
