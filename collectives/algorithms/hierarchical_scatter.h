// Hierarchical reduce-scatter, for nodes of several ranks: blocks are added inside a node as they
// are (or with a codec of that level), and each rank gets one compressed message a node.
//
// The block of the rank that has local number c on its node belongs to column c (nodes.h). Two
// hops:
//   0  inside a node: every rank sends the blocks of column c to the column's owner on its node,
//      who adds in rank order
//   1  the owner sends each block, encoded, to the rank whose block it is
// That rank adds what the nodes sent in node order. One quantisation.
//
// Bytes a rank gives to the transport, S = slot bytes of a block: the blocks of the columns that it
// does not own, and S for each block of a column that it owns and whose rank is on another node.
// Out of a node of L ranks: (N - L) S, where flat exchanges send L (N - L) S.
#pragma once

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/node_exchange.h"

namespace slimwire {

struct ScatterMap {
    ScatterMap(const Layout& layout, const CallSignature& signature, const NodeTable& nodes);
    ScratchMap scratch;
    uint64_t staging_part, row_part, send_part, receive_part;  // bytes of one part of an area
    uint64_t staging;  // own blocks as rows, where stages_rows()
    uint64_t rows;     // blocks of owned columns, of this node's ranks
    uint64_t sum;      // one block in the call's type
    uint64_t send, receive, workspace;
};

// make_layout() of one block; `intra` is the codec inside nodes.
[[nodiscard]] Layout hierarchical_scatter_layout(const std::vector<Segment>& segments,
                                                 DType dtype,
                                                 const std::optional<CodecSpec>& intra,
                                                 uint64_t slice_bytes);
[[nodiscard]] ExchangeSizes hierarchical_scatter_sizes(const PlannedCall& call);
[[nodiscard]] uint64_t hierarchical_scatter_wire_bytes(const PlannedCall& call, int rank) noexcept;

// AlgorithmDescriptor::residual_runs; as HierarchicalScatter::owed_by(), without a codec inside
// nodes.
void hierarchical_scatter_runs(const Plan& plan,
                               const PlanShape& shape,
                               int rank,
                               const UseResidualRun& use);

class HierarchicalScatter final : public NodeExchange {
  public:
    explicit HierarchicalScatter(const ExchangeContext& context);

  private:
    [[nodiscard]] ResidualSpan owed_by(int block, const Piece& piece) const noexcept;
    [[nodiscard]] size_t row_stride(int slice) const noexcept;
    // The rank whose block belongs to a column on a node; -1 where the node has none.
    [[nodiscard]] int block_of(int node, int column) const noexcept;
    [[nodiscard]] char* staged_row(int slice, int block) const noexcept;
    // What local rank `local` contributes to the block of `node` in the owned column `owned`.
    [[nodiscard]] char* row(int slice, int owned, int node, int local) const noexcept;
    [[nodiscard]] char* send_slot(int slice, int owned, int node) const noexcept;
    [[nodiscard]] char* receive_slot(int slice, int node) const noexcept;
    [[nodiscard]] const char* block_at(const Piece& piece, int block) const noexcept;
    // body(owned, column, node, block) for each block of each owned column.
    template <class Body>
    Status for_owned_blocks(const Body& body) const;
    template <class Step>
    Status move_row(int slice, int block, char* to, const Step& step) const;

    Status encode(int slice) override;
    Status place_own(int slice) override;
    Status between(int hop, int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    Status gather_rows(int slice);
    Status exchange_sums(int slice);

    ScatterMap map_;
};

}  // namespace slimwire
