// Hierarchical all-reduce and reduce, for nodes of several ranks: elements are added inside a node
// as they are (or with a codec of that level), and one compressed message a node crosses the slow
// link instead of one a rank.
//
// With K nodes, a message has as many columns as the largest node has ranks, each cut into K
// chunks. Column c belongs on every node to one rank, its owner (nodes.h). Four hops:
//   0  inside a node: every rank sends column c to its node's owner, who adds in rank order
//   1  between owners of a column: the node's sum, encoded, chunk k to node k, as in two_shot
//   2  between owners: the chunk's sum over nodes, encoded again, to all of them
//   3  inside a node: the owner hands the encoded column to the other ranks
// Every rank decodes the same bytes, the owners too, so results are bit-identical. A reduce sends
// what hops 2 and 3 carry to the root's node and the root alone.
//
// Bytes a rank gives to the transport, S = total slot bytes of a chunk, for each column it owns:
// 2 (K-1) S to other nodes and (L-1) K S inside its node of L ranks, and for each column it does
// not own the column itself. Out of a node, whatever its size: 2 (K-1) S a column. For a reduce an
// owner sends (K-1) S and, beside the root, K S inside the node, elsewhere S to the root's node.
#pragma once

#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/hierarchical_layout.h"

namespace slimwire {

class Hierarchical final : public NodeExchange {
  public:
    explicit Hierarchical(const ExchangeContext& context);

  private:
    [[nodiscard]] bool rooted() const noexcept;
    // Whether ranks of this node get the result.
    [[nodiscard]] bool delivers_to(int node) const noexcept;
    [[nodiscard]] size_t row_stride(int slice) const noexcept;
    // Slots of owned columns in `send` and `receive`, of all columns in `gather`.
    [[nodiscard]] char* slot(uint64_t area, int slice, int owned, int node) const noexcept;
    [[nodiscard]] char* gathered(int slice, int column, int node) const noexcept;
    // Where the raw part begins in a row.
    [[nodiscard]] size_t raw_offset(int slice) const noexcept;
    [[nodiscard]] char* staged_row(int slice, int column) const noexcept;
    // Contribution of local rank `local` to the owned column number `owned`.
    [[nodiscard]] char* row(int slice, int owned, int local) const noexcept;
    [[nodiscard]] ResidualSpan residual_of(int slice, size_t piece, int owned) const noexcept;
    // Where a column of a piece lies in the program's buffer.
    [[nodiscard]] const char* column_of(const Piece& piece, int column) const noexcept;
    // Where what hop 0 sends of it lies, `row_offset` bytes into its row if there is one.
    [[nodiscard]] const char* source_of(int slice,
                                        const Piece& piece,
                                        int column,
                                        size_t row_offset) const noexcept;
    template <class Step>
    Status move_row(int slice, int column, char* to, const Step& step) const;

    Status encode(int slice) override;
    Status place_own(int slice) override;
    Status between(int hop, int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    // What between() does before hops 1 and 2.
    Status encode_node_sum(int slice);
    Status reduce_nodes(int slice);
    // The four hops.
    Status gather_rows(int slice);
    Status exchange_sums(int slice);
    Status exchange_results(int slice);
    Status hand_out(int slice);

    HierarchicalMap map_;
};

}  // namespace slimwire
