// The plugin's part in the process's report (SLIMWIRE_REPORT) and summary.
//
// Where libslimwire.so or the drop-in is in the process, it asks for the plugin's records
// (slimwireNetReport_v1, collectives/observe/report_source.h) and writes them into its own file.
// Where it is not, or does not ask because it meets no NCCL call (a program that NCCL is linked
// into, or SLIMWIRE_MODE=off), the plugin writes the file itself, by the same Reporter.
#pragma once

#include "plugin/net/engine/traffic.h"
#include "plugin/net/settings.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

// Once, when the process's engine is opened; `traffic` is never destroyed. Throws std::bad_alloc.
void start_net_report(const EngineSettings& settings, const Wire& wire, Traffic* traffic);

}  // namespace slimwire::net
