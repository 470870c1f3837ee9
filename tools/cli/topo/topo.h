// `slimwire topo`: a machine with what topology/ finds out about it, as text and JSON.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/observe/stats.h"
#include "topology/machine/comm_links.h"
#include "topology/machine/machine.h"
#include "topology/machine/places.h"

namespace slimwire::cli {

// A communicator to show beside the machine: its links, and from which sizes calls pay there, by a
// calibration (SLIMWIRE_CALIBRATION, collectives/plan/comm_costs.h) or the reports of a job.
struct TopoComm {
    std::string name;   // "all GPUs", or as reports name it
    std::string links;  // a sentence
    std::vector<CostThreshold> thresholds;
};

struct Topo {
    Topo(Machine read, std::vector<std::string> read_log, int node_count);

    Machine machine;
    PathTable paths;
    Places places;
    std::vector<std::string> log;  // of discovery
    int nodes = 1;                 // of a communicator over all GPUs of such machines
    CommLinks links;               // empty without GPUs
    std::vector<TopoComm> comms;   // to show beside, set by the caller

    [[nodiscard]] const Device& device(int index) const {
        return machine.devices[static_cast<size_t>(index)];
    }
    [[nodiscard]] std::vector<int> children(int parent) const;
    // What is known of a device beside its name: "32 GT/s x16, 48 GB/s; H200, sm 9.0".
    [[nodiscard]] std::string signature(int index) const;
    // "8 GPUs, 9 NICs, 2 processors, 1 NVLink domain, 8 rails"
    [[nodiscard]] std::string summary() const;
    // "16 ranks on 2 nodes, ..."; empty without GPUs.
    [[nodiscard]] std::string communicator() const;
};

// A recorded machine; a pipe is read, too. Errors name the path.
Result<Machine> load_machine(const std::string& path);

}  // namespace slimwire::cli
