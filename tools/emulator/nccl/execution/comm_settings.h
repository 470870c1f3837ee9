// What a client's configuration says about a communicator.
#pragma once

#include <nccl.h>

#include <string>

namespace slimwire::emu {

struct CommSettings {
    std::string net_name;    // netName; empty: any network
    int traffic_class = -1;  // -1: not set
    // splitShare, NCCL_COMM_SPLIT_SHARE_RESOURCES: what is split off shares this one's abort flag.
    bool split_share = false;
};

// `inherited` where `config` says nothing or is null. NCCL_NET goes before a configured network.
[[nodiscard]] CommSettings comm_settings(const ncclConfig_t* config, CommSettings inherited = {});

}  // namespace slimwire::emu
