#include "collectives/plan/nodes.h"

namespace slimwire {

NodeTable::NodeTable(const CommShape& shape)
    : node_of_(shape.node_of_rank),
      local_of_(shape.local_rank),
      ranks_(static_cast<size_t>(shape.nodes)),
      most_(shape.max_ranks_per_node),
      least_(shape.min_ranks_per_node) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
        ranks_[static_cast<size_t>(node_of(rank))].push_back(rank);
    }
}

int NodeTable::owned_by(int rank) const noexcept {
    const int size = size_of(node_of(rank));
    const int local = local_of(rank);
    return local < most_ ? (most_ - local + size - 1) / size : 0;
}

}  // namespace slimwire
