// The best way between any two GPUs and NICs of a machine: its class, as NCCL names them, and its
// bandwidth. Better classes win over wider ways, as in NCCL. Pure.
//
// Who shares what in a machine: for each GPU its processor, PCIe switch and NVLink domain, and its
// rail, the NICs nearest to it. Pure.
//
// GPUs with equally near NICs share these out in order: of 2 GPUs and 4 NICs on one switch the
// first takes two, of 8 GPUs and 2 NICs four take each. A rail's index is the NIC's place among its
// host's NICs, so machines built alike agree on it; networks built by rails connect equal indices.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/machine/machine.h"

namespace slimwire {

// From near to far, in NCCL's order.
enum class PathClass : uint8_t {
    kLocal,   // LOC: the same GPU
    kNvLink,  // NVL: NVLink or xGMI, also through NVSwitches
    kNvHop,   // NVB: two NVLinks by way of another GPU
    kC2c,     // C2C: chip to chip with a processor
    kPix,     // PIX: one PCIe switch
    kPxb,     // PXB: several PCIe switches, no processor
    kPxn,     // PXN: GPU to NIC by NVLink and another GPU's PCIe
    kPhb,     // PHB: through a processor
    kSys,     // SYS: from one processor to another
    kNet,     // NET: other host, through both one's NICs
    kNone,    // DIS: no way
};

[[nodiscard]] const char* path_class_name(PathClass path_class) noexcept;  // "LOC", "NVL", ...

struct Path {
    PathClass path_class = PathClass::kNone;
    double gb_s = 0;  // of the narrowest link; 0 for none. The wire behind a NIC does not enter.
    int hops = 0;     // links
    bool operator==(const Path&) const = default;
};

class PathTable {
  public:
    // kMaxEndpoints bounds the work for machines read from files.
    explicit PathTable(const Machine& machine);

    // Of two devices that are GPUs or NICs; DIS for others.
    [[nodiscard]] Path between(int from, int to) const noexcept;

  private:
    void find_from(int source, const Machine& machine);
    void find_hops(const Machine& machine);
    void find_pxn(const Machine& machine);
    [[nodiscard]] Path& at(int from, int to) noexcept;

    struct Edge {
        int to;
        PathClass path_class;
        double gb_s;
    };
    std::vector<std::vector<Edge>> edges_;  // by device
    std::vector<int> place_;                // of a device among the endpoints; -1: none
    std::vector<int> endpoints_;
    std::vector<Path> paths_;  // endpoint x endpoint
};

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
