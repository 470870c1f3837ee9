// One machine as slimwire sees it: its devices in a tree (processors, PCIe switches, GPUs, network
// cards) and the links that lie beside the tree (NVLink, xGMI, chip to chip). Filled by the readers
// (machine_xml.h) or from the machine itself (discovery.h); paths.h finds ways through it.
//
// Plain data, value types. Bandwidths are in GB/s (1e9 bytes) of one direction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slimwire {

enum class DeviceKind : uint8_t {
    kCpu,       // one NUMA node
    kSwitch,    // a PCIe switch
    kGpu,       // or a part of one, where a card shows as several
    kNic,       // a network card, with its ports
    kNvSwitch,  // all NVSwitches together, as in NCCL: who is connected to one is to all
    kOther,     // a PCI device of which neither class nor content is known
};

[[nodiscard]] const char* device_kind_name(DeviceKind kind) noexcept;  // "cpu", "switch", ...

// One port of a network card, or one device of NCCL's <net>.
struct NetPort {
    std::string name;   // mlx5_0, eth0
    double gbit_s = 0;  // 0: not known
    int port = 1;
    bool rdma = false;
};

struct Device {
    DeviceKind kind = DeviceKind::kOther;
    int parent = -1;  // index of the device nearer to the processor; -1: a processor
    int host = 0;     // index into Machine::hosts
    int number = -1;  // NUMA node; a GPU's CUDA ordinal in a dump, NVML's index on this machine; a
                      // NIC's place among NICs
    int rank = -1;    // what an NCCL dump says of a GPU
    std::string bus_id;          // "0000:17:00.0", lower case; empty for processors
    std::string name;            // model, where known
    std::string vendor;          // of a processor: GenuineIntel; else PCI vendor "0x10de"
    std::string arch;            // of a processor: x86_64, arm64, ppc64
    int family = 0, model = 0;   // of a processor
    int compute_capability = 0;  // of an NVIDIA GPU: 90 for 9.0
    int gcn = 0;                 // of an AMD GPU: 942
    std::string fabric;  // of a GPU: the multi-node NVLink domain it belongs to; empty: none
    // Of the PCIe link to the parent; 0: not known.
    double pcie_gt_s = 0;
    int pcie_width = 0;
    double up_gb_s = 0;       // of the link to the parent
    bool up_assumed = false;  // up_gb_s is finish_machine()'s default
    std::vector<NetPort> ports;

    [[nodiscard]] double net_gbit_s() const noexcept;  // of all ports
};

enum class LinkKind : uint8_t { kNvLink, kXgmi, kC2c, kPciPeer };

[[nodiscard]] const char* link_kind_name(LinkKind kind) noexcept;  // "NVLink", "xGMI", "C2C", ...

// Beside the tree; both directions are alike.
struct DirectLink {
    int a = -1, b = -1;  // devices
    LinkKind kind = LinkKind::kNvLink;
    int count = 1;    // lanes that NCCL counts
    double gb_s = 0;  // of all of them
};

struct Machine {
    std::string source;              // "NCCL topology, version 1"; "hwloc 2.0"; "this machine"
    std::vector<std::string> hosts;  // dumps of a multi-node NVLink domain have several
    std::vector<Device> devices;     // a parent stands before its children
    std::vector<DirectLink> links;
    // Whether `links` has all there are: files for NCCL_TOPO_FILE may leave the GPUs' own to NCCL,
    // and hwloc's files and machines without NVML say none.
    bool gpu_links_told = true;
    std::vector<std::string> notes;  // what was odd or assumed; one line each

    // Indices into `devices`: GPUs by host and CUDA ordinal, NICs by host in the order of the file.
    [[nodiscard]] std::vector<int> gpus() const { return in_order(DeviceKind::kGpu); }
    [[nodiscard]] std::vector<int> nics() const { return in_order(DeviceKind::kNic); }
    [[nodiscard]] std::vector<int> in_order(DeviceKind kind) const;
    [[nodiscard]] std::vector<int> of_kind(DeviceKind kind) const;
    // The device of a kind with this bus id; -1: none.
    [[nodiscard]] int find(DeviceKind kind, std::string_view bus_id, int host = 0) const;
    // The NVSwitches, which are there from now on.
    [[nodiscard]] int nv_switch();
    // The processor a device hangs off; -1 for an NVSwitch.
    [[nodiscard]] int cpu_of(int device) const;
    // "GPU 3", "NIC mlx5_0", "CPU 1", "switch 0000:17:00.0": with the host where there are several.
    [[nodiscard]] std::string label(int device) const;
};

// Numbers GPUs without CUDA ordinal and NICs, fills up_gb_s from PCIe speeds, and removes what a
// reader left useless. Every reader ends with it.
void finish_machine(Machine* machine);

// What a link gives, in GB/s of one direction, by what is known of its ends. The values are those
// NCCL plans with (src/graph/topo.h of 2.28; RCCL's for AMD): what transfers reach, not signalling
// rates.
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
