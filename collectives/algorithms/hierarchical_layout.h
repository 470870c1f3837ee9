// How a hierarchical all-reduce or reduce (hierarchical.h) cuts a message into columns and rows,
// where they lie in its scratch, and what it costs. Pure; the formulas are those of
// collectives/FORMAT.md.
#pragma once

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/node_exchange.h"

namespace slimwire {

// The result of a slice is decoded four phases after the first of it is put there.
inline constexpr int kGatherParts = 4;

// Elements of a column that a piece has, and those of a column that nothing cuts short.
[[nodiscard]] int64_t column_count(const Chunks& piece, int column, int nodes) noexcept;
[[nodiscard]] int64_t column_elems(const Chunks& piece, int nodes) noexcept;
// Bytes of a piece in a row, of all of a slice: plain elements, or the encoding of a column. The
// raw part, of plain elements in every case, stands behind the pieces.
[[nodiscard]] size_t row_bytes(const Layout& layout,
                               DType dtype,
                               const Piece& piece,
                               int nodes) noexcept;
[[nodiscard]] size_t row_bytes(const Layout& layout,
                               DType dtype,
                               const Slice& slice,
                               int nodes) noexcept;
[[nodiscard]] size_t raw_row_bytes(DType dtype, const RawPart& raw, int nodes) noexcept;

struct HierarchicalMap {
    HierarchicalMap(const Layout& layout, const CallSignature& signature, const NodeTable& nodes);
    ScratchMap scratch;
    uint64_t staging_part, row_part, slot_part, gather_part;  // bytes of one part of an area
    uint64_t staging;  // own columns as rows, where stages_rows() or a part is raw
    uint64_t rows;     // columns of this node's ranks
    uint64_t sum;      // one column or chunk in the call's type
    uint64_t send, receive, gather, workspace;
};

// make_layout() with a chunk for each column and node; `intra` is the codec inside nodes.
[[nodiscard]] Layout hierarchical_layout(const std::vector<Segment>& segments,
                                         DType dtype,
                                         const NodeTable& nodes,
                                         const std::optional<CodecSpec>& intra,
                                         uint64_t slice_bytes);
[[nodiscard]] ExchangeSizes hierarchical_sizes(const PlannedCall& call);
[[nodiscard]] uint64_t hierarchical_wire_bytes(const PlannedCall& call, int rank) noexcept;

}  // namespace slimwire
