// The machine itself: its devices from hwloc (else from sysfs), NVLinks from NVML, RDMA ports from
// libibverbs (else from sysfs), speeds of Ethernet and PCIe from sysfs. All libraries are opened at
// run time; each may be missing, which costs one line of `log`, and the next source is asked.
//
// Called by `slimwire topo`. Opens NVML and RDMA devices, so never before a job's first
// communicator and never in a process that is to fork. Takes milliseconds to seconds (hwloc, NVML).
// Not thread-safe where those libraries are not.
#pragma once

#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace slimwire {

struct DiscoverySources {
    // Library names as dlopen() takes them; empty: not asked.
    std::string hwloc = "libhwloc.so.15";
    std::string nvml = "libnvidia-ml.so.1";
    std::string verbs = "libibverbs.so.1";
    // Before /sys and /proc; a recorded tree in tests.
    std::string root;
};

struct Discovery {
    Machine machine;
    std::vector<std::string> log;  // which source was missing, and what stands in
};

[[nodiscard]] Discovery discover_machine(const DiscoverySources& sources = {});

}  // namespace slimwire
