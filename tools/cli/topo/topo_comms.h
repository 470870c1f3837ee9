// Communicators as `slimwire topo` shows them beside the machine: links, and from which sizes calls
// pay there, by a calibration (SLIMWIRE_CALIBRATION, collectives/plan/comm_costs.h) or the reports
// of a job that runs or ran.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "collectives/observe/stats.h"
#include "tools/cli/report/report_merge.h"
#include "topology/cost/calibration.h"
#include "topology/machine/comm_links.h"

namespace slimwire::cli {

struct TopoComm {
    std::string name;   // "all GPUs", or as reports name it
    std::string links;  // a sentence
    std::vector<CostThreshold> thresholds;
};

// "16 ranks on 2 nodes; 8 rails, alike on every node; slowest link in a node: NVL 370.8 GB/s, ..."
// `known`: whether the links in a node are.
[[nodiscard]] std::string links_sentence(const CommLinks& links, bool known = true);

// Of `links`, by what was measured of communicators of its shape; without thresholds where nothing
// was.
[[nodiscard]] TopoComm calibrated_comm(const CommLinks& links,
                                       const std::vector<Calibration>& calibrations);
// All of a job; those without links are left out.
[[nodiscard]] std::vector<TopoComm> reported_comms(const MergedReport& report);

// Lines, each with its newline; of one communicator.
[[nodiscard]] std::vector<std::string> comm_lines(const TopoComm& comm);
[[nodiscard]] nlohmann::ordered_json comm_json(const TopoComm& comm);

}  // namespace slimwire::cli
