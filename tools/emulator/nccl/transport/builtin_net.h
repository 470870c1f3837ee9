// The built-in network: the ncclNet v11 table over rings in shared memory, with the shaped link in
// it. It serves all emulated nodes, which are processes of one machine.
#pragma once

#include "plugin/net/abi/net_v11.h"

namespace slimwire::emu {

[[nodiscard]] const net::NetV11* builtin_net() noexcept;

}  // namespace slimwire::emu
