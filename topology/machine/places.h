// Who shares what in a machine: for each GPU its processor, PCIe switch and NVLink domain, and its
// rail, the NICs nearest to it. Pure.
//
// GPUs with equally near NICs share these out in order: of 2 GPUs and 4 NICs on one switch the
// first takes two, of 8 GPUs and 2 NICs four take each. A rail's index is the NIC's place among its
// host's NICs, so machines built alike agree on it; networks built by rails connect equal indices.
#pragma once

#include <vector>

#include "topology/machine/machine.h"
#include "topology/machine/paths.h"

namespace slimwire {

struct GpuPlace {
    int gpu = -1;  // index into Machine::devices, as the others
    int cpu = -1;
    int pci_switch = -1;     // the nearest; -1: at a processor's own port
    int nv_domain = -1;      // GPUs with equal numbers reach each other by NVLink alone; -1: none
    double nv_gb_s = 0;      // all NVLinks (xGMI) of the GPU
    double nv_way_gb_s = 0;  // the least way to another GPU of its domain
    std::vector<int> nics;   // its rail; empty: there is no NIC
    PathClass nic_class = PathClass::kNone;  // of the way to these
    double net_gb_s = 0;     // through these NICs: what PCIe and, where known, the wire allow
    bool net_known = false;  // the wire's speed entered
    int rail = -1;           // Device::number of the first
};

struct Places {
    std::vector<GpuPlace> gpus;  // in the order of Machine::gpus()
    int nv_domains = 0;
    int rails = 0;  // different values of GpuPlace::rail
};

[[nodiscard]] Places find_places(const Machine& machine, const PathTable& paths);

// Between two GPUs: as the table has it, and NET through their rails where that has no way.
[[nodiscard]] Path gpu_path(const PathTable& paths, const GpuPlace& a, const GpuPlace& b);

}  // namespace slimwire
