// The plugin's part in the process's report (SLIMWIRE_REPORT) and summary: from the engine's
// counters to the records net and net_peer (collectives/SCHEMA.md) and a line.
//
// Where libslimwire.so or the drop-in is in the process, it asks for the plugin's records
// (slimwireNetReport_v1, collectives/observe/report_source.h) and writes them into its own file.
// Where it is not, or does not ask because it meets no NCCL call (a program that NCCL is linked
// into, or SLIMWIRE_MODE=off), the plugin writes the file itself, by the same Reporter.
#pragma once

#include <string>
#include <vector>

#include "plugin/net/engine/traffic.h"
#include "plugin/net/settings.h"
#include "plugin/net/wire.h"

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

// Once, when the process's engine is opened; `traffic` is never destroyed. Throws std::bad_alloc.
void start_net_report(const EngineSettings& settings, const Wire& wire, Traffic* traffic);

}  // namespace slimwire::net
