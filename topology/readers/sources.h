// What each source of discovery.h tells, one function each; used by discovery.cpp only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "codecs/base/status.h"
#include "topology/machine/machine.h"
#include "topology/machine/pci_tree.h"

namespace slimwire::sources {

// hwloc's own XML of this machine, so that a recorded one takes the same way. Its components that
// would open GPUs (CUDA, NVML, OpenCL, ...) are left out.
Result<std::string> hwloc_xml(const std::string& library);

// Of /sys below `root`.
Result<std::vector<Device>> sysfs_processors(const std::string& root);
Result<std::vector<PciFunction>> sysfs_functions(const std::string& root);
// Fills the PCIe speed and width of a device, as far as they are told.
void read_sysfs_pcie(const std::string& root, Device* device);
// Network interfaces with a PCI device: its bus id and the port.
using PortOfFunction = std::pair<std::string, NetPort>;
[[nodiscard]] std::vector<PortOfFunction> sysfs_interfaces(const std::string& root);
[[nodiscard]] std::vector<PortOfFunction> sysfs_rdma_ports(const std::string& root);

// RDMA ports; their bus ids come from sysfs below `root`.
Result<std::vector<PortOfFunction>> verbs_ports(const std::string& library,
                                                const std::string& root);

// Fills GPUs and links; adds GPUs the tree lacks.
Status read_nvml(const std::string& library, Machine* machine);

// "0000:17:00.0" at the end of a path, or before further folders: the last one in it; empty: none.
[[nodiscard]] std::string last_bus_id(std::string_view path);

}  // namespace slimwire::sources
