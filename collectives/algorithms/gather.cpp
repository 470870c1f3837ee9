#include "collectives/algorithms/gather.h"

#include "collectives/plan/plan.h"

namespace slimwire {

GatherMap::GatherMap(const Layout& layout, DType dtype, int ranks)
    : scratch(layout),
      slots(scratch.add_slots(ranks)),
      raw(scratch.add_bytes(static_cast<uint64_t>(layout.largest_raw_part()) * dtype_bytes(dtype))),
      workspace(scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes))) {}

uint64_t gather_wire_bytes(const Layout& layout, int ranks) noexcept {
    return static_cast<uint64_t>(ranks - 1) * static_cast<uint64_t>(layout.total_slot_bytes);
}

ExchangeSizes gather_sizes(const Layout& layout,
                           const CallSignature& signature,
                           const PlanShape& shape) {
    ExchangeSizes sizes;
    sizes.wire_bytes = gather_wire_bytes(layout, shape.ranks);
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

float Gather::factor() const noexcept {
    return context_.plan.signature.redop == RedOp::kAvg ? 1.0f / static_cast<float>(ranks()) : 1.0f;
}

const char* Gather::contribution(const Piece& piece) const noexcept {
    return static_cast<const char*>(context_.call.send) +
           static_cast<int64_t>(piece.offset_elems) * element_bytes();
}

char* Gather::result(const Piece& piece) const noexcept {
    return static_cast<char*>(context_.call.recv) +
           static_cast<int64_t>(piece.offset_elems) * element_bytes();
}

SlicedExchange::Run Gather::run_of(int slice, const Piece& piece) const noexcept {
    return {piece.count, piece.chunk_elems, slice_at(slice).slot_bytes};
}

Status Gather::encode_piece(int slice, const Piece& piece) {
    return encode_run(piece, random_of(slice, piece, 0), contribution(piece),
                      {piece.residual_offset, piece.order, piece.has_residual},
                      slot(slice, rank()) + piece.slot_offset, run_of(slice, piece), factor());
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
    return nccl_status(
        context_.nccl,
        context_.nccl.AllGather(slot(slice, rank()), slot(slice, 0), slot_bytes(slice), ncclUint8,
                                context_.state.exchange_comm, wire()),
        "ncclAllGather of contributions");
}

Status Gather::decode_piece(int slice, const Piece& piece) {
    return sum_slots(piece, slot(slice, 0) + piece.slot_offset, slice_at(slice).slot_bytes, ranks(),
                     piece.count, result(piece));
}

Status Gather::decode(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(decode_piece(slice, piece));
    }
    const RawPart& raw = slice_at(slice).raw;
    char* const sum = context_.scratch + map_.raw;
    SLIMWIRE_TRY(sum_raw(slot(slice, 0) + raw.slot_offset, slice_at(slice).slot_bytes, ranks(),
                         raw.count, factor(), sum));
    return unpack_raw(slice, sum, raw.chunk_elems, 0);
}

Status EstimatedGather::encode_piece(int slice, const Piece& piece) {
    if (!piece.has_residual) {
        return Gather::encode_piece(slice, piece);
    }
    char* const own_slot = slot(slice, rank()) + piece.slot_offset;
    float* const own = estimates() + piece.residual_offset;
    SLIMWIRE_TRY(encode_difference(piece, random_of(slice, piece, 0), contribution(piece), own,
                                   own_slot, run_of(slice, piece), factor()));
    return decode_run(piece, own_slot, own, run_of(slice, piece), true);
}

Status EstimatedGather::decode_piece(int slice, const Piece& piece) {
    if (!piece.has_residual) {
        return Gather::decode_piece(slice, piece);
    }
    float* const shared =
        estimates() + static_cast<int64_t>(context_.plan.shared_estimate) + piece.residual_offset;
    for (int source = 0; source < ranks(); ++source) {
        SLIMWIRE_TRY(decode_run(piece, slot(slice, source) + piece.slot_offset, shared,
                                run_of(slice, piece), true));
    }
    return deliver_estimate(shared, estimates() + piece.residual_offset, result(piece), piece.count,
                            piece.chunk_elems);
}

}  // namespace slimwire
