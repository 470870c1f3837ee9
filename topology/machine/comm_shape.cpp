#include "topology/machine/comm_shape.h"

#include <algorithm>
#include <unordered_map>

namespace slimwire {

const char* scope_name(Scope scope) noexcept {
    switch (scope) {
        case Scope::kIntraNode:
            return "intra_node";
        case Scope::kInterNode:
            return "inter_node";
    }
    return "unknown";
}

Result<CommShape> make_comm_shape(const std::vector<RankIdentity>& identities) {
    if (identities.empty()) {
        return Status(Code::kInvalidArgument, "communicator shape: 0 ranks; accepted: 1 or more");
    }
    CommShape shape;
    shape.ranks = static_cast<int>(identities.size());
    shape.node_of_rank.reserve(identities.size());
    shape.local_rank.reserve(identities.size());
    std::unordered_map<uint64_t, int> node_of_host;
    std::vector<int> ranks_on_node;
    for (const RankIdentity& identity : identities) {
        const auto [where, is_new] =
            node_of_host.try_emplace(identity.host_id, static_cast<int>(ranks_on_node.size()));
        if (is_new) {
            ranks_on_node.push_back(0);
        }
        const int node = where->second;
        shape.node_of_rank.push_back(node);
        shape.local_rank.push_back(ranks_on_node[static_cast<size_t>(node)]++);
    }
    const auto [least, most] = std::minmax_element(ranks_on_node.begin(), ranks_on_node.end());
    shape.nodes = static_cast<int>(ranks_on_node.size());
    shape.min_ranks_per_node = *least;
    shape.max_ranks_per_node = *most;
    shape.scope = shape.nodes > 1 ? Scope::kInterNode : Scope::kIntraNode;
    return shape;
}

}  // namespace slimwire
