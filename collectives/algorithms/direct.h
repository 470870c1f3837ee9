// Operations whose payload crosses the wire once: every rank encodes what it sends, the encoded
// bytes go the way NCCL would send the plain ones, every receiver decodes. Values are quantised
// once.
//
//   reduce_scatter  a slot for each rank, exchanged pairwise; sums in rank order
//   all_gather      the contribution's slot, all-gathered; every rank decodes the same bytes, the
//                   contributor too
//   broadcast       the root's slot; every rank decodes the same bytes, the root too
//   all_to_all      a slot for each other rank; a rank's own block is copied as it is
//   gather, scatter a slot for each rank but the root, whose own block is copied as it is
//   send, recv      one slot
//
// Blocks are cut into slices of elements alike. Send and recv run in phases only when nothing else
// is in the group: a peer may group the two directions otherwise than we do, and then waits for all
// of one message before it looks at the next.
//
// Bytes a rank gives to the transport, S = total slot bytes of one block: (N-1) S for
// reduce_scatter, all_gather, all_to_all and the root of a scatter; S for a broadcast (nothing from
// the last rank of the ring), gather (nothing from the root), send.
#pragma once

#include "collectives/algorithms/algorithm.h"

namespace slimwire {

struct DirectMap {
    DirectMap(const Layout& layout, const CallSignature& signature, int ranks);
    ScratchMap scratch;
    int send_slots, receive_slots;
    uint64_t send, receive;  // areas
    uint64_t workspace;
};

// Enqueues the copy of what a rank sends to itself; nothing where it lies in place already, or in
// operations whose own block takes part in the exchange.
Status copy_own_block(const ExchangeContext& context);

// The reduce-scatter with EF21 (estimates.cpp).
Exchange* make_estimated_scatter(const ExchangeContext& context, ExchangeRoom* room);

// Codecs that go by columns (column_blocks.cpp): whether one does; why the call cannot, else empty;
// its layout, whose workspace holds the columns of one block; whether a layout is such a one.
[[nodiscard]] bool goes_by_columns(const CodecSpec& codec) noexcept;
[[nodiscard]] std::string refuse_columns(const AlgorithmRequest& request);
[[nodiscard]] Layout column_layout(const AlgorithmRequest& request);
[[nodiscard]] bool has_columns(const Layout& layout) noexcept;
Exchange* make_column_blocks(const ExchangeContext& context, ExchangeRoom* room);

class Direct : public SlicedExchange {
  public:
    explicit Direct(const ExchangeContext& context);

  protected:
    [[nodiscard]] Op op() const noexcept { return context_.plan.signature.op; }
    [[nodiscard]] int root() const noexcept { return context_.plan.signature.root_or_peer; }
    [[nodiscard]] char* send_slot(int slice, int block) const noexcept;
    [[nodiscard]] char* receive_slot(int slice, int block) const noexcept;
    [[nodiscard]] bool whole_blocks(int slice) const noexcept;
    // Blocks `first` .. `last` - 1 of the program's buffer, which starts with block `base`, into
    // their slots and back.
    virtual Status encode_blocks(int slice, int first, int last, int base);
    virtual Status decode_blocks(int slice, int first, int last, int base);
    // The sum of all contributions to this rank's block, in the order of the ranks.
    virtual Status decode_sum(int slice);

  private:
    Status encode(int slice) override;
    Status place_own(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;
    DirectMap map_;
};

}  // namespace slimwire
