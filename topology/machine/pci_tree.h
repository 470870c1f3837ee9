// From PCI functions with their chains of bridges to the tree of a Machine, as hwloc and sysfs both
// tell of them. Of a chain every second bridge stays, as in NCCL: a root port and a switch's
// downstream ports are the ends of links, a switch's upstream port stands for the switch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace slimwire {

struct PciBridge {
    std::string bus_id;
    double gt_s = 0;
    int width = 0;
    double up_gb_s = 0;
};

struct PciFunction {
    std::string bus_id;
    uint32_t pci_class = 0;  // 0x0302
    uint32_t vendor = 0;     // 0x10de
    int numa = -1;
    std::string name;
    double gt_s = 0;  // as in Device
    int width = 0;
    double up_gb_s = 0;
    std::vector<PciBridge> bridges;  // the nearest first, root port included
    std::vector<NetPort> ports;
};

[[nodiscard]] bool is_gpu(const PciFunction& function) noexcept;
[[nodiscard]] bool is_nic(const PciFunction& function) noexcept;

// Adds the GPUs and NICs among `functions`, in the order of their bus ids, and their switches,
// below the machine's processors; a function of an unknown node comes below the first one.
void add_functions(std::vector<PciFunction> functions, Machine* machine);

}  // namespace slimwire
