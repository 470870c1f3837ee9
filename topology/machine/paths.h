// The best way between any two GPUs and NICs of a machine: its class, as NCCL names them, and its
// bandwidth. Better classes win over wider ways, as in NCCL. Pure.
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

}  // namespace slimwire
