// What a client's configuration says about a communicator.
#pragma once

#include <nccl.h>

#include <string>

namespace slimwire::emu {

struct CommSettings {
    std::string net_name;    // netName; empty: any network
    int traffic_class = -1;  // -1: not set
};

// `inherited` where `config` says nothing or is null. NCCL_NET goes before a configured network.
[[nodiscard]] CommSettings comm_settings(const ncclConfig_t* config, CommSettings inherited = {});

}  // namespace slimwire::emu
