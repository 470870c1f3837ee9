// From the engine's counters to text: the plugin's records in a report file
// (collectives/SCHEMA.md: net, net_peer) and its line in the summary. Pure functions over copies.
#pragma once

#include <string>
#include <vector>

#include "plugin/net/engine/traffic.h"
#include "plugin/net/settings.h"

namespace slimwire::net {

// What does not change while the process runs.
struct NetFacts {
    EngineSettings settings;
    std::vector<std::string> devices;  // names
};

// Whole lines: one of the process, then one each peer and direction.
[[nodiscard]] std::string net_lines(const NetFacts& facts, const std::vector<PeerTraffic>& peers);

// What crossed the network both ways, in a line without its end; empty when nothing did.
[[nodiscard]] std::string net_summary(const std::vector<PeerTraffic>& peers);

}  // namespace slimwire::net
