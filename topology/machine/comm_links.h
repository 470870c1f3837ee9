// A communicator's links: what lies between any two of its ranks, which nodes are uneven, which
// rails they use and which link is the slowest. From what every rank says of its place, so that all
// ranks compute the same; whole numbers only, so that they compute it to the bit.
//
// Pure. RankPlace is what a hello would carry beside RankIdentity.
#pragma once

#include <cstdint>
#include <vector>

#include "codecs/base/status.h"
#include "topology/machine/comm_shape.h"
#include "topology/machine/places.h"

namespace slimwire {

// Where a rank sits, as it says of itself; 0 and -1: not known or none. Ids are only compared.
struct RankPlace {
    uint64_t host_id = 0;       // equal: the same node (RankIdentity::host_id)
    uint64_t gpu_id = 0;        // equal: the same GPU
    uint64_t nv_domain_id = 0;  // equal: NVLink between them
    uint64_t switch_id = 0;     // equal: the same PCIe switch
    int32_t numa = -1;
    int32_t rail = -1;
    // MB/s of one direction; 0: not known.
    uint32_t nv_mb_s = 0;    // its least way to another GPU of its NVLink domain
    uint32_t pcie_mb_s = 0;  // the GPU's PCIe link
    uint32_t cpu_mb_s = 0;   // between the node's processors
    uint32_t net_mb_s = 0;   // its rail
    bool operator==(const RankPlace&) const = default;
};

struct RankLink {
    PathClass path_class = PathClass::kNone;  // LOC, NVL, PIX, PHB, SYS or NET
    uint32_t mb_s = 0;                        // 0: not known
    bool same_rail = false;                   // of NET
    bool operator==(const RankLink&) const = default;
};

struct CommLinks {
    CommShape shape;
    std::vector<int> ranks_on_node;  // by node; nodes as in CommShape
    int nv_domains = 0;              // of two ranks and more
    int rails = 0;
    // Every node has as many ranks on each rail as the others: exchanges by rails need no rank of
    // another rail.
    bool rails_aligned = false;
    bool shared_gpus = false;  // two ranks are on one GPU
    // kNone: there is no such pair. mb_s is the least that is known.
    RankLink slowest_in_node;
    RankLink slowest_between_nodes;
    [[nodiscard]] const RankLink& slowest() const noexcept {
        return slowest_between_nodes.path_class != PathClass::kNone ? slowest_between_nodes
                                                                    : slowest_in_node;
    }
    bool operator==(const CommLinks&) const = default;
};

[[nodiscard]] RankLink rank_link(const RankPlace& a, const RankPlace& b) noexcept;

// `places` is indexed by rank; empty is kInvalidArgument.
Result<CommLinks> make_comm_links(const std::vector<RankPlace>& places);

// What the rank on GPU `index` of `places.gpus` says of itself. `host_id` names this node.
[[nodiscard]] RankPlace rank_place(const Machine& machine,
                                   const Places& places,
                                   size_t index,
                                   uint64_t host_id);

}  // namespace slimwire
