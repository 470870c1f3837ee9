#include "collectives/algorithms/hierarchical_scatter.h"

#include <algorithm>

#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

size_t slice_row_bytes(const Layout& layout, DType dtype, const Slice& slice) noexcept {
    size_t bytes = 0;
    for (const Piece& piece : slice.pieces) {
        bytes += row_bytes_of(layout, dtype, piece.chunk_elems);
    }
    return bytes;
}

}  // namespace

Layout hierarchical_scatter_layout(const std::vector<Segment>& segments,
                                   DType dtype,
                                   const std::optional<CodecSpec>& intra,
                                   uint64_t slice_bytes) {
    Layout layout = make_layout(segments, dtype, 1, slice_bytes);
    layout.intra = intra;
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            const int64_t elems = piece.chunk_elems;
            layout.workspace_bytes =
                std::max({layout.workspace_bytes, piece.codec.workspace_bytes(dtype, elems, elems),
                          intra ? intra->workspace_bytes(dtype, elems, elems) : 0});
        }
    }
    return layout;
}

ScatterMap::ScatterMap(const Layout& layout, const CallSignature& signature, const NodeTable& nodes)
    : scratch(layout) {
    const auto count = static_cast<uint64_t>(nodes.nodes());
    const auto max_slot = static_cast<uint64_t>(layout.max_slot_bytes);
    const auto most_owned = static_cast<uint64_t>(nodes.most_owned());
    uint64_t ranks = 0, most_rows = 0;
    for (int node = 0; node < nodes.nodes(); ++node) {
        const auto owned = static_cast<uint64_t>(nodes.owned_by(nodes.ranks_of(node).front()));
        const auto size = static_cast<uint64_t>(nodes.size_of(node));
        ranks += size;
        most_rows = std::max(most_rows, owned * count * size);
    }
    uint64_t max_row = 0, max_elems = 0;
    for (const Slice& slice : layout.slices) {
        max_row = std::max<uint64_t>(max_row, slice_row_bytes(layout, signature.dtype, slice));
        for (const Piece& piece : slice.pieces) {
            max_elems = std::max(max_elems, static_cast<uint64_t>(piece.count));
        }
    }
    staging_part = stages_rows(layout, signature) ? ranks * max_row : 0;
    row_part = most_rows * max_row;
    send_part = most_owned * count * max_slot;
    receive_part = count * max_slot;
    staging = scratch.add_parts(kSlotParts, staging_part);
    rows = scratch.add_parts(kSlotParts, row_part);
    sum = scratch.add_bytes(max_elems * dtype_bytes(signature.dtype));
    send = scratch.add_parts(kSlotParts, send_part);
    receive = scratch.add_parts(kSlotParts, receive_part);
    workspace = scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes));
}

uint64_t hierarchical_scatter_wire_bytes(const PlannedCall& call, int rank) noexcept {
    const auto& [layout, signature, shape] = call;
    const NodeTable& nodes = *shape.nodes;
    uint64_t row = signature.count * dtype_bytes(signature.dtype);
    if (layout.intra) {
        row = 0;
        for (const Slice& slice : layout.slices) {
            row += slice_row_bytes(layout, signature.dtype, slice);
        }
    }
    const int own_node = nodes.node_of(rank);
    uint64_t bytes = 0;
    for (int node = 0; node < nodes.nodes(); ++node) {
        for (int column = 0; column < nodes.size_of(node); ++column) {
            if (nodes.owner(own_node, column) != rank) {
                bytes += row;
            } else if (node != own_node) {
                bytes += static_cast<uint64_t>(layout.total_slot_bytes);
            }
        }
    }
    return bytes;
}

ExchangeSizes hierarchical_scatter_sizes(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    const NodeTable& nodes = *shape.nodes;
    ExchangeSizes sizes;
    const auto most_owned = static_cast<uint64_t>(nodes.most_owned());
    for (int rank = 0; rank < shape.ranks; ++rank) {
        sizes.wire_bytes = std::max(sizes.wire_bytes, hierarchical_scatter_wire_bytes(call, rank));
    }
    sizes.node_wire_bytes = static_cast<uint64_t>(shape.ranks - nodes.least()) *
                            static_cast<uint64_t>(layout.total_slot_bytes);
    sizes.scratch_bytes = ScatterMap(layout, signature, nodes).scratch.bytes();
    // Of the node's sum of each block that the rank may own; before them those of its own
    // contributions, where they are encoded inside the node too.
    const uint64_t blocks = most_owned * static_cast<uint64_t>(nodes.nodes()) +
                            (layout.intra ? static_cast<uint64_t>(shape.ranks) : 0);
    sizes.residual_elems = blocks * signature.count;
    sizes.residual_runs = blocks * layout.fed_pieces();
    sizes.largest_run = static_cast<uint64_t>(layout.largest_piece());
    return sizes;
}

HierarchicalScatter::HierarchicalScatter(const ExchangeContext& context)
    : NodeExchange(context, 2),
      map_(context.plan.layout, context.plan.signature, *context.state.shape.nodes) {
    workspace_ = context.scratch + map_.workspace;
}

size_t HierarchicalScatter::row_stride(int slice) const noexcept {
    return slice_row_bytes(layout(), signature().dtype, slice_at(slice));
}

int HierarchicalScatter::block_of(int node, int column) const noexcept {
    return column < nodes().size_of(node) ? nodes().ranks_of(node)[static_cast<size_t>(column)]
                                          : -1;
}

char* HierarchicalScatter::staged_row(int slice, int block) const noexcept {
    return context_.scratch + ScratchMap::part(map_.staging, kSlotParts, map_.staging_part, slice) +
           static_cast<size_t>(block) * row_stride(slice);
}

char* HierarchicalScatter::row(int slice, int owned, int node, int local) const noexcept {
    const int index = (owned * nodes().nodes() + node) * local_ranks_ + local;
    return context_.scratch + ScratchMap::part(map_.rows, kSlotParts, map_.row_part, slice) +
           static_cast<size_t>(index) * row_stride(slice);
}

char* HierarchicalScatter::send_slot(int slice, int owned, int node) const noexcept {
    return context_.scratch + ScratchMap::part(map_.send, kSlotParts, map_.send_part, slice) +
           static_cast<size_t>(owned * nodes().nodes() + node) * slot_bytes(slice);
}

char* HierarchicalScatter::receive_slot(int slice, int node) const noexcept {
    return context_.scratch + ScratchMap::part(map_.receive, kSlotParts, map_.receive_part, slice) +
           static_cast<size_t>(node) * slot_bytes(slice);
}

const char* HierarchicalScatter::block_at(const Piece& piece, int block) const noexcept {
    return static_cast<const char*>(context_.call.send) +
           (block * static_cast<int64_t>(signature().count) +
            static_cast<int64_t>(piece.offset_elems)) *
               element_bytes();
}

template <class Body>
Status HierarchicalScatter::for_owned_blocks(const Body& body) const {
    return for_owned([&](int owned, int column) -> Status {
        for (int node = 0; node < nodes().nodes(); ++node) {
            if (const int block = block_of(node, column); block >= 0) {
                SLIMWIRE_TRY(body(owned, column, node, block));
            }
        }
        return {};
    });
}

// A block goes piece by piece, or as one encoded row: step(from, to, bytes) for each part of it.
template <class Step>
Status HierarchicalScatter::move_row(int slice, int block, char* to, const Step& step) const {
    if (layout().intra) {
        return step(staged_row(slice, block), to, row_stride(slice));
    }
    const bool staged = stages_rows(layout(), signature());
    size_t offset = 0;
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(step(staged ? staged_row(slice, block) + offset : block_at(piece, block),
                          to + offset, static_cast<size_t>(piece.count * element_bytes())));
        offset += row_bytes_of(layout(), signature().dtype, piece.chunk_elems);
    }
    return {};
}

Status HierarchicalScatter::encode(int slice) {
    if (!stages_rows(layout(), signature())) {
        return {};
    }
    size_t offset = 0;
    for (const Piece& piece : slice_at(slice).pieces) {
        const Piece whole = row_piece(layout(), piece, piece.chunk_elems);
        for (int block = 0; block < ranks(); ++block) {
            const ResidualSpan span = owed_by(block, piece);
            SLIMWIRE_TRY(stage_row(whole, random_of(slice, piece, static_cast<uint32_t>(2 * block)),
                                   block_at(piece, block), span, staged_row(slice, block) + offset,
                                   piece.count, static_cast<int64_t>(row_stride(slice))));
        }
        offset += row_bytes_of(layout(), signature().dtype, piece.chunk_elems);
    }
    return {};
}

// The residuals of a block after another: of the own contributions first, where they have some.
SlicedExchange::ResidualSpan HierarchicalScatter::owed_by(int block,
                                                          const Piece& piece) const noexcept {
    return {
        static_cast<int64_t>(static_cast<uint64_t>(block) * signature().count + piece.offset_elems),
        block * static_cast<int64_t>(layout().fed_pieces()) + piece.order};
}

Status HierarchicalScatter::place_own(int slice) {
    return for_owned_blocks([&](int owned, int, int node, int block) {
        return move_row(slice, block, row(slice, owned, node, local_),
                        [&](const char* from, char* to, size_t bytes) {
                            return copy(to, from, bytes, wire());
                        });
    });
}

Status HierarchicalScatter::gather_rows(int slice) {
    for (int column = 0; column < nodes().most(); ++column) {
        const int owner = nodes().owner(node_, column);
        for (int node = 0; owner != rank() && node < nodes().nodes(); ++node) {
            if (const int block = block_of(node, column); block >= 0) {
                SLIMWIRE_TRY(move_row(slice, block, staged_row(slice, block),
                                      [&](const char* from, char*, size_t bytes) {
                                          return send_bytes(from, bytes, owner);
                                      }));
            }
        }
    }
    return for_owned_blocks([&](int owned, int, int node, int block) -> Status {
        for (int local = 0; local < local_ranks_; ++local) {
            if (local != local_) {
                const int source = nodes().ranks_of(node_)[static_cast<size_t>(local)];
                SLIMWIRE_TRY(move_row(slice, block, row(slice, owned, node, local),
                                      [&](const char*, char* to, size_t bytes) {
                                          return receive_bytes(to, bytes, source);
                                      }));
            }
        }
        return {};
    });
}

Status HierarchicalScatter::between(int, int slice) {
    SLIMWIRE_TRY(for_owned_blocks([&](int owned, int, int node, int block) -> Status {
        size_t offset = 0;
        for (const Piece& piece : slice_at(slice).pieces) {
            char* sum = context_.scratch + map_.sum;
            SLIMWIRE_TRY(sum_rows(row_piece(layout(), piece, piece.chunk_elems),
                                  row(slice, owned, node, 0) + offset,
                                  static_cast<int64_t>(row_stride(slice)), piece.count, sum));
            const int index = (layout().intra ? ranks() : 0) + owned * nodes().nodes() + node;
            SLIMWIRE_TRY(encode_sum(
                piece, random_of(slice, piece, static_cast<uint32_t>(2 * block + 1)), sum,
                owed_by(index, piece), send_slot(slice, owned, node) + piece.slot_offset,
                run_of(slice, piece)));
            offset += row_bytes_of(layout(), signature().dtype, piece.chunk_elems);
        }
        return {};
    }));
    // The own column's block of this node is this rank's.
    return copy(receive_slot(slice, node_), send_slot(slice, 0, node_), slot_bytes(slice),
                context_.work);
}

Status HierarchicalScatter::exchange_sums(int slice) {
    SLIMWIRE_TRY(for_owned_blocks([&](int owned, int, int node, int block) {
        return node == node_ ? Status()
                             : send_bytes(send_slot(slice, owned, node), slot_bytes(slice), block);
    }));
    for (int node = 0; node < nodes().nodes(); ++node) {
        if (node != node_) {
            SLIMWIRE_TRY(receive_bytes(receive_slot(slice, node), slot_bytes(slice),
                                       nodes().owner(node, local_)));
        }
    }
    return {};
}

Status HierarchicalScatter::send(int hop, int slice) {
    return hop == 0 ? gather_rows(slice) : exchange_sums(slice);
}

Status HierarchicalScatter::decode(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(
            sum_slots(piece, receive_slot(slice, 0) + piece.slot_offset, slice_at(slice).slot_bytes,
                      nodes().nodes(), piece.count, result(piece),
                      sum_of_means(context_, nodes().nodes(), piece.codec.sums(), &piece.codec)));
    }
    return {};
}

void hierarchical_scatter_runs(const Plan& plan,
                               const PlanShape& shape,
                               int rank,
                               const UseResidualRun& use) {
    const NodeTable& nodes = *shape.nodes;
    const int step = nodes.size_of(nodes.node_of(rank));
    const int first = plan.layout.intra ? shape.ranks : 0;  // in front are the rank's own blocks
    int64_t owned = 0;
    for (int column = nodes.local_of(rank); column < nodes.most(); column += step, ++owned) {
        for (int node = 0; node < nodes.nodes(); ++node) {
            if (column < nodes.size_of(node)) {
                const int block = nodes.ranks_of(node)[static_cast<size_t>(column)];
                block_run(plan, first + owned * nodes.nodes() + node, block, use);
            }
        }
    }
}

}  // namespace slimwire
