// The shape of a communicator: which rank sits on which node. Built once, from what every rank said
// of itself in the agreement, so the result is equal on all ranks; plans may depend on it.
//
// Called by collectives when a communicator is created. Pure; knows neither NCCL nor CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "codecs/base/status.h"
#include "topology/machine/scope.h"

namespace slimwire {

// What one rank says of itself. Equal host_id means the same node.
struct RankIdentity {
    uint64_t host_id = 0;
    int32_t device = 0;         // CUDA ordinal within the process
    int32_t launcher_rank = 0;  // rank the launcher gave the process; -1 when it gave none
    bool operator==(const RankIdentity&) const = default;
};

struct CommShape {
    int ranks = 0;
    int nodes = 0;
    int min_ranks_per_node = 0;
    int max_ranks_per_node = 0;
    // Indexed by rank. Nodes are numbered in the order in which ranks first name them; a local rank
    // is the number of lower ranks on the same node.
    std::vector<int> node_of_rank;
    std::vector<int> local_rank;
    Scope scope = Scope::kIntraNode;  // kInterNode as soon as there are two nodes

    [[nodiscard]] bool even() const noexcept { return min_ranks_per_node == max_ranks_per_node; }
    bool operator==(const CommShape&) const = default;
};

// `identities` is indexed by rank; empty is kInvalidArgument.
Result<CommShape> make_comm_shape(const std::vector<RankIdentity>& identities);

}  // namespace slimwire
