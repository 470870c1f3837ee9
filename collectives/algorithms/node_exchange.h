// What the hierarchical exchanges share: who is where, and how contributions are added inside a
// node. A row is one rank's part of what its node adds up, as it travels inside the node: elements
// as they are, scaled ones for a pre-multiplied sum (each rank has a scalar of its own), or an
// encoding of the codec of that level. hierarchical.h and hierarchical_scatter.h derive from it.
#pragma once

#include "collectives/algorithms/exchange.h"
#include "collectives/plan/nodes.h"

namespace slimwire {

// Parts of an area, which slices use in turn.
inline constexpr int kSlotParts = 2;

// Bytes of a row of at most `elems` elements.
[[nodiscard]] size_t row_bytes_of(const Layout& layout, DType dtype, int64_t elems) noexcept;
// Whether rows are made before they are sent, rather than sent from the program's buffer.
[[nodiscard]] bool stages_rows(const Layout& layout, const CallSignature& signature) noexcept;
// `piece` as the codec inside nodes, if there is one, takes it: `elems` elements are one chunk.
[[nodiscard]] Piece row_piece(const Layout& layout, const Piece& piece, int64_t elems);

class NodeExchange : public SlicedExchange {
  protected:
    NodeExchange(const ExchangeContext& context, int hops);

    [[nodiscard]] const NodeTable& nodes() const noexcept { return *context_.state.shape.nodes; }
    [[nodiscard]] const Layout& layout() const noexcept { return context_.plan.layout; }
    [[nodiscard]] const CallSignature& signature() const noexcept {
        return context_.plan.signature;
    }
    // body(owned, column) for each column that belongs to this rank.
    template <class Body>
    Status for_owned(const Body& body) const {
        for (int owned = 0, column = local_; column < nodes().most();
             ++owned, column += local_ranks_) {
            SLIMWIRE_TRY(body(owned, column));
        }
        return {};
    }
    // Makes this rank's row of `count` elements. `row`: of row_piece(); `stride`: bytes of a row.
    Status stage_row(const Piece& row,
                     const RandomKey& random,
                     const void* input,
                     const ResidualSpan& span,
                     void* output,
                     int64_t count,
                     int64_t stride);
    // Adds the rows of this node, `stride` bytes apart, into `sum`, in rank order.
    Status sum_rows(const Piece& row, const char* rows, int64_t stride, int64_t count, void* sum);
    // Encodes a run of such sums.
    Status encode_sum(const Piece& piece,
                      const RandomKey& random,
                      const void* sum,
                      const ResidualSpan& span,
                      void* output,
                      const Run& run);
    // Adds the rows of raw elements of this node, `stride` bytes apart, into `sum` as sum_rows(),
    // and cuts it into the chunks of `raw` at `slots`, `slot_bytes` apart.
    Status sum_raw_rows(const RawPart& raw,
                        const char* rows,
                        int64_t stride,
                        int64_t count,
                        void* sum,
                        char* slots,
                        int64_t slot_bytes);
    Status copy(void* to, const void* from, size_t bytes, cudaStream_t stream) const {
        return copy_on_device(context_.api, to, from, bytes, stream, "copy inside the device");
    }

    int node_, local_, local_ranks_;
};

}  // namespace slimwire
