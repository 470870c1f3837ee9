// One-shot all-reduce: every rank encodes its whole contribution once, the encodings are
// all-gathered, and every rank decodes and adds all of them in rank order. Values are quantised
// once instead of twice, and there is one exchange instead of two; but a rank receives N - 1 whole
// messages, so it pays for few ranks and strong codecs. Every rank adds the same bytes in the same
// order, so results are bit-identical.
//
// Bytes a rank gives to the transport, S = total slot bytes of the whole message: (N-1) S.
#include "collectives/algorithms/algorithm.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

struct GatherMap {
    GatherMap(const Layout& layout, DType dtype, int ranks);
    ScratchMap scratch;
    uint64_t slots;  // area of a slot for each rank
    uint64_t raw;    // the sum of a slice's raw part
    uint64_t workspace;
};

class Gather : public SlicedExchange {
  public:
    explicit Gather(const ExchangeContext& context);

  protected:
    [[nodiscard]] char* slot(int slice, int source) const noexcept;
    virtual Status encode_piece(int slice, const Piece& piece);
    virtual Status decode_piece(int slice, const Piece& piece);

  private:
    Status encode(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    GatherMap map_;
};

// The same for EF21 (codecs/residual/estimate.h): a rank encodes what its contribution differs by
// from its estimate, and all ranks' copy of the sum's estimate takes up all that was sent, in rank
// order. Residuals of a tensor: own estimates, shared estimates. Pieces that feed nothing are as
// ever.
class EstimatedGather final : public Gather {
  public:
    explicit EstimatedGather(const ExchangeContext& context) : Gather(context) {}

  private:
    Status encode_piece(int slice, const Piece& piece) override;
    Status decode_piece(int slice, const Piece& piece) override;
};

GatherMap::GatherMap(const Layout& layout, DType dtype, int ranks)
    : scratch(layout),
      slots(scratch.add_slots(ranks)),
      raw(scratch.add_bytes(static_cast<uint64_t>(layout.largest_raw_part()) * dtype_bytes(dtype))),
      workspace(scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes))) {}

uint64_t wire_bytes(const PlannedCall& call, int) {
    return static_cast<uint64_t>(call.shape.ranks - 1) *
           static_cast<uint64_t>(call.layout.total_slot_bytes);
}

ExchangeSizes sizes_of(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    ExchangeSizes sizes;
    sizes.wire_bytes = wire_bytes(call, 0);
    sizes.node_wire_bytes = sizes.wire_bytes;  // NCCL's ring leaves a node once
    sizes.scratch_bytes = GatherMap(layout, signature.dtype, shape.ranks).scratch.bytes();
    sizes.residual_elems = layout.fed_elems();
    sizes.residual_runs = layout.fed_pieces();
    sizes.shared_begin = sizes.residual_elems;
    sizes.estimate_elems = 2 * sizes.residual_elems;
    sizes.largest_run = static_cast<uint64_t>(layout.largest_piece());
    return sizes;
}

Gather::Gather(const ExchangeContext& context)
    : SlicedExchange(context, 1, true),
      map_(context.plan.layout, context.plan.signature.dtype, context.state.shape.ranks) {
    workspace_ = context.scratch + map_.workspace;
}

char* Gather::slot(int slice, int source) const noexcept {
    return context_.scratch + map_.scratch.half(map_.slots, ranks(), slice) +
           static_cast<size_t>(source) * slot_bytes(slice);
}

Status Gather::encode_piece(int slice, const Piece& piece) {
    return encode_run(piece, random_of(slice, piece, 0), contribution(piece),
                      {piece.residual_offset, piece.order, piece.has_residual},
                      slot(slice, rank()) + piece.slot_offset, run_of(slice, piece),
                      average_of(context_).mean);
}

Status Gather::encode(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(encode_piece(slice, piece));
    }
    const RawPart& raw = slice_at(slice).raw;
    return pack_raw(slice, slot(slice, rank()) + raw.slot_offset, raw.chunk_elems,
                    slice_at(slice).slot_bytes);
}

Status Gather::send(int, int slice) {
    return all_gather(slot(slice, 0), slot_bytes(slice), "ncclAllGather of contributions");
}

Status Gather::decode_piece(int slice, const Piece& piece) {
    return sum_slots(piece, slot(slice, 0) + piece.slot_offset, slice_at(slice).slot_bytes, ranks(),
                     piece.count, result(piece),
                     sum_of_means(context_, ranks(), piece.codec.sums(), &piece.codec));
}

Status Gather::decode(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(decode_piece(slice, piece));
    }
    const RawPart& raw = slice_at(slice).raw;
    char* const sum = context_.scratch + map_.raw;
    SLIMWIRE_TRY(sum_raw(slot(slice, 0) + raw.slot_offset, slice_at(slice).slot_bytes, ranks(),
                         raw.count, average_of(context_), sum));
    return unpack_raw(slice, sum, raw.chunk_elems, 0);
}

Status EstimatedGather::encode_piece(int slice, const Piece& piece) {
    if (!piece.has_residual) {
        return Gather::encode_piece(slice, piece);
    }
    char* const own_slot = slot(slice, rank()) + piece.slot_offset;
    float* const own = estimates() + piece.residual_offset;
    SLIMWIRE_TRY(encode_difference(piece, random_of(slice, piece, 0), contribution(piece), own,
                                   own_slot, run_of(slice, piece), average_of(context_).mean));
    return take_up(piece, own_slot, run_of(slice, piece), false, own);
}

Status EstimatedGather::decode_piece(int slice, const Piece& piece) {
    if (!piece.has_residual) {
        return Gather::decode_piece(slice, piece);
    }
    float* const shared = estimates() +
                          static_cast<int64_t>(context_.plan.residual.shared_estimate) +
                          piece.residual_offset;
    for (int source = 0; source < ranks(); ++source) {
        SLIMWIRE_TRY(take_up(piece, slot(slice, source) + piece.slot_offset, run_of(slice, piece),
                             true, shared));
    }
    return deliver_estimate(piece.codec, shared, estimates() + piece.residual_offset, result(piece),
                            piece.count, piece.chunk_elems);
}

std::vector<std::string> steps_of(const Plan&, const PlanShape& shape) {
    return {"encode the whole message",
            "send it to " + std::to_string(shape.ranks - 1) + " ranks, get as many",
            "decode and add"};
}

Exchange* make(const ExchangeContext& context, ExchangeRoom* room) {
    return context.plan.error_feedback == ErrorFeedback::kEf21
               ? room->emplace<EstimatedGather>(context)
               : room->emplace<Gather>(context);
}

}  // namespace

extern constinit const AlgorithmDescriptor kGatherAlgorithm{
    .segment_ops = bit_of(Op::kAllReduce),
    .encodes_contributions = true,
    .layout = block_layout,
    .sizes = sizes_of,
    .wire_bytes = wire_bytes,
    .residual_runs = message_runs,
    .steps = steps_of,
    .make = make,
};

}  // namespace slimwire
