// Which network table carries traffic between nodes: a plugin named by NCCL_NET_PLUGIN, loaded,
// initialised and closed as NCCL 2.28 does it, else the built-in one. Thread contract: any thread.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>

#include "codecs/base/status.h"
#include "plugin/net/abi/net.h"
#include "tools/emulator/nccl/plugins/plugin_library.h"

namespace slimwire::emu {

// What a client's configuration says about a communicator.
struct CommSettings {
    std::string net_name;    // netName; empty: any network
    int traffic_class = -1;  // -1: not set
    // splitShare, NCCL_COMM_SPLIT_SHARE_RESOURCES: what is split off shares this one's abort flag.
    bool split_share = false;
};

// `inherited` where `config` says nothing or is null. NCCL_NET goes before a configured network.
[[nodiscard]] CommSettings comm_settings(const ncclConfig_t* config, CommSettings inherited = {});

// What the transport asks about a network card.
struct NetCard {
    int speed_mbps = 0;
    size_t max_p2p_bytes = 0;
    net::NetDeviceType device_type = net::kNetDeviceHost;
};

// A network as one communicator has it.
struct AssignedNet {
    // False where the plugin does not tell.
    bool card(int device, NetCard* card) const;

    const net::NetV11* table = nullptr;  // but for the properties
    int version = 0;
    void* context = nullptr;
    int devices = 0;
    int plugin = -1;  // its place in the list; -1: the emulator's own, which has no table
};

// NCCL_NET_PLUGIN is a list by comma, tried in order; where it is not set, libnccl-net.so is the
// list, "none" is an entry that is never found. Of a library the newest version of the table is
// taken that it exports (12 or 11). Where NCCL_NET or the configuration name a network, the table's
// name must equal it (any case); IB and Socket mean the built-in network here. What does not fit,
// cannot be initialised, has no device or wants device code is passed over with an INFO line; the
// first that fits disables the others. kInvalidUsage when a name is wanted that nobody has.
//
// The table's init is called, without a profiler, for every communicator.
Result<AssignedNet> assign_net(uint64_t comm, const CommSettings& settings);

// Ends a plugin's context; the last communicator that lets go closes the library.
void release_net(const AssignedNet& net) noexcept;

// The library of the plugin in use: where a tuner is looked for that has none of
// its own. Not open when the network is built in.
[[nodiscard]] PluginLibrary net_plugin_library();

}  // namespace slimwire::emu
