// What a link gives, in GB/s of one direction, by what is known of its ends. The values are those
// NCCL plans with (src/graph/topo.h of 2.28; RCCL's for AMD): what transfers reach, not signalling
// rates.
#pragma once

#include <string_view>

#include "topology/machine/machine.h"

namespace slimwire {

inline constexpr double kLocalGbS = 5000;     // within one GPU
inline constexpr double kDefaultPcieGtS = 8;  // where a source does not say
inline constexpr int kDefaultPcieWidth = 16;
inline constexpr int kWidestPcie = 32;  // a width above it is none

// 12 GB/s for 16 lanes of 8 GT/s.
[[nodiscard]] double pcie_gb_s(double gt_s, int width) noexcept;
// "16.0 GT/s PCIe" -> 16; 0 for what is none.
[[nodiscard]] double parse_pcie_speed(std::string_view text) noexcept;
// PCIe generation 1 to 7 -> GT/s; 0 for others.
[[nodiscard]] double pcie_generation_gt_s(int generation) noexcept;
// Of one NVLink of a GPU of this compute capability.
[[nodiscard]] double nvlink_gb_s(int compute_capability) noexcept;
// Of one xGMI link.
[[nodiscard]] double xgmi_gb_s(int gcn) noexcept;
// Between two NUMA nodes.
[[nodiscard]] double cpu_link_gb_s(const Device& cpu) noexcept;

}  // namespace slimwire
