// Which rank sits on which node, as the algorithms with a level inside nodes use it. Made once for
// each communicator from what all ranks said of themselves, so it is equal on all of them. Pure.
#pragma once

#include <vector>

#include "topology/machine/comm_shape.h"

namespace slimwire {

class NodeTable {
  public:
    explicit NodeTable(const CommShape& shape);

    [[nodiscard]] int nodes() const noexcept { return static_cast<int>(ranks_.size()); }
    // Ranks of the largest and the smallest node.
    [[nodiscard]] int most() const noexcept { return most_; }
    [[nodiscard]] int least() const noexcept { return least_; }
    [[nodiscard]] int node_of(int rank) const noexcept {
        return node_of_[static_cast<size_t>(rank)];
    }
    // Number of lower ranks on the same node.
    [[nodiscard]] int local_of(int rank) const noexcept {
        return local_of_[static_cast<size_t>(rank)];
    }
    // The ranks of a node, ascending.
    [[nodiscard]] const std::vector<int>& ranks_of(int node) const noexcept {
        return ranks_[static_cast<size_t>(node)];
    }
    [[nodiscard]] int size_of(int node) const noexcept {
        return static_cast<int>(ranks_of(node).size());
    }
    // A message has most() columns; the rank of `node` that gathers this one.
    [[nodiscard]] int owner(int node, int column) const noexcept {
        const std::vector<int>& ranks = ranks_of(node);
        return ranks[static_cast<size_t>(column) % ranks.size()];
    }
    // How many columns a rank owns: local_of(rank), local_of(rank) + size of its node, ...
    [[nodiscard]] int owned_by(int rank) const noexcept;
    // By the first rank of the smallest node; no rank owns more.
    [[nodiscard]] int most_owned() const noexcept { return (most_ + least_ - 1) / least_; }

  private:
    std::vector<int> node_of_, local_of_;
    std::vector<std::vector<int>> ranks_;
    int most_ = 0, least_ = 0;
};

}  // namespace slimwire
