#include "collectives/algorithms/hierarchical_layout.h"

#include <algorithm>

#include "collectives/plan/plan.h"

namespace slimwire {

int64_t column_count(const Chunks& piece, int column, int nodes) noexcept {
    return piece.chunk_begin((column + 1) * nodes) - piece.chunk_begin(column * nodes);
}

int64_t column_elems(const Chunks& piece, int nodes) noexcept {
    return piece.chunk_elems * nodes;
}

size_t row_bytes(const Layout& layout, DType dtype, const Piece& piece, int nodes) noexcept {
    return row_bytes_of(layout, dtype, column_elems(piece, nodes));
}

size_t row_bytes(const Layout& layout, DType dtype, const Slice& slice, int nodes) noexcept {
    size_t bytes = 0;
    for (const Piece& piece : slice.pieces) {
        bytes += row_bytes(layout, dtype, piece, nodes);
    }
    return bytes + raw_row_bytes(dtype, slice.raw, nodes);
}

size_t raw_row_bytes(DType dtype, const RawPart& raw, int nodes) noexcept {
    return (static_cast<size_t>(column_elems(raw, nodes)) * dtype_bytes(dtype) + 15) / 16 * 16;
}

Layout hierarchical_layout(const std::vector<Segment>& segments,
                           DType dtype,
                           const NodeTable& nodes,
                           const std::optional<CodecSpec>& intra,
                           uint64_t slice_bytes) {
    Layout layout = make_layout(segments, dtype, nodes.most() * nodes.nodes(), slice_bytes);
    layout.intra = intra;
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            const int64_t elems = column_elems(piece, nodes.nodes());
            layout.workspace_bytes =
                std::max({layout.workspace_bytes,
                          piece.codec.workspace_bytes(dtype, elems, piece.chunk_elems),
                          intra ? intra->workspace_bytes(dtype, elems, elems) : 0});
        }
    }
    return layout;
}

HierarchicalMap::HierarchicalMap(const Layout& layout,
                                 const CallSignature& signature,
                                 const NodeTable& nodes)
    : scratch(layout) {
    const auto max_slot = static_cast<uint64_t>(layout.max_slot_bytes);
    const auto columns = static_cast<uint64_t>(nodes.most());
    const auto most_owned = static_cast<uint64_t>(nodes.most_owned());
    uint64_t most_rows = 0;
    for (int node = 0; node < nodes.nodes(); ++node) {
        const int first = nodes.ranks_of(node).front();
        const auto owned = static_cast<uint64_t>(nodes.owned_by(first));
        most_rows = std::max(most_rows, owned * static_cast<uint64_t>(nodes.size_of(node)));
    }
    uint64_t max_row = 0;
    int64_t max_column = 0;
    for (const Slice& slice : layout.slices) {
        max_row =
            std::max<uint64_t>(max_row, row_bytes(layout, signature.dtype, slice, nodes.nodes()));
        for (const Piece& piece : slice.pieces) {
            max_column = std::max(max_column, column_elems(piece, nodes.nodes()));
        }
        max_column = std::max(max_column, column_elems(slice.raw, nodes.nodes()));
    }
    const auto count = static_cast<uint64_t>(nodes.nodes());
    row_part = most_rows * max_row;
    slot_part = most_owned * count * max_slot;
    gather_part = columns * count * max_slot;
    staging_part =
        stages_rows(layout, signature) || layout.largest_raw_part() > 0 ? columns * max_row : 0;
    staging = scratch.add_parts(kSlotParts, staging_part);
    rows = scratch.add_parts(kSlotParts, row_part);
    sum = scratch.add_bytes(static_cast<uint64_t>(max_column) * dtype_bytes(signature.dtype));
    send = scratch.add_parts(kSlotParts, slot_part);
    receive = scratch.add_parts(kSlotParts, slot_part);
    gather = scratch.add_parts(kGatherParts, gather_part);
    workspace = scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes));
}

uint64_t hierarchical_wire_bytes(const PlannedCall& call, int rank) noexcept {
    const auto& [layout, signature, shape] = call;
    const NodeTable& nodes = *shape.nodes;
    const int node = nodes.node_of(rank);
    const auto others = static_cast<uint64_t>(nodes.size_of(node) - 1);
    const auto count = static_cast<uint64_t>(nodes.nodes());
    const auto owned = static_cast<uint64_t>(nodes.owned_by(rank));
    // Sums to the other nodes, results to them, and whole columns of results inside the node.
    uint64_t slots = owned * (2 * (count - 1) + others * count);
    if (signature.op == Op::kReduce) {
        const int root = signature.root_or_peer;
        const bool beside_root = node == nodes.node_of(root);
        slots = owned * (count - 1 + (beside_root ? (rank == root ? 0 : count) : 1));
    }
    uint64_t bytes = slots * static_cast<uint64_t>(layout.total_slot_bytes);
    for (int column = 0; column < nodes.most(); ++column) {
        if (nodes.owner(node, column) == rank) {
            continue;
        }
        for (const Slice& slice : layout.slices) {
            if (layout.intra) {
                bytes += row_bytes(layout, signature.dtype, slice, nodes.nodes());
                continue;
            }
            auto elems = static_cast<uint64_t>(column_count(slice.raw, column, nodes.nodes()));
            for (const Piece& piece : slice.pieces) {
                elems += static_cast<uint64_t>(column_count(piece, column, nodes.nodes()));
            }
            bytes += elems * dtype_bytes(signature.dtype);
        }
    }
    return bytes;
}

ExchangeSizes hierarchical_sizes(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    const NodeTable& nodes = *shape.nodes;
    ExchangeSizes sizes;
    const auto most_owned = static_cast<uint64_t>(nodes.most_owned());
    for (int rank = 0; rank < shape.ranks; ++rank) {
        sizes.wire_bytes = std::max(sizes.wire_bytes, hierarchical_wire_bytes(call, rank));
    }
    const auto count = static_cast<uint64_t>(nodes.nodes());
    const uint64_t out =
        signature.op == Op::kReduce ? count : 2 * (count - 1);  // slots of a column
    sizes.node_wire_bytes =
        static_cast<uint64_t>(nodes.most()) * out * static_cast<uint64_t>(layout.total_slot_bytes);
    sizes.scratch_bytes = HierarchicalMap(layout, signature, nodes).scratch.bytes();
    // For each owned column the residual of its node's sum, then of its own chunk; before them all
    // that of the whole message, where it is encoded inside the node too.
    uint64_t elems = 0;
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            elems += piece.has_residual
                         ? most_owned * (count + 1) * static_cast<uint64_t>(piece.chunk_elems)
                         : 0;
            sizes.largest_run =
                std::max(sizes.largest_run, count * static_cast<uint64_t>(piece.chunk_elems));
        }
    }
    sizes.residual_elems = elems + (layout.intra ? layout.fed_elems() : 0);
    sizes.residual_runs =
        layout.fed_pieces() *
        (2 * most_owned + (layout.intra ? static_cast<uint64_t>(nodes.most()) : 0));
    return sizes;
}

}  // namespace slimwire
