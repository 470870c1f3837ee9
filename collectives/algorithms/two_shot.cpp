// Two-shot all-reduce: encode, exchange the chunks all to all, decode-sum-encode the own chunk in
// one pass, all-gather, decode. Every value is quantised twice whatever the number of ranks, sums
// are taken in rank order in fp32, and every rank (the owner too) decodes the same bytes. A reduce
// sends the encoded sums to its root instead of to all. Where a codec does not reduce in one pass
// (exact top-k), the chunk is summed in the call's type, as NCCL does, and encoded again.
//
// Bytes a rank gives to the transport, S = total slot bytes: all-reduce 2 (N-1) S; reduce (N-1) S,
// and S more where it is not the root.
#include "collectives/algorithms/algorithm.h"

#include <algorithm>

#include "codecs/residual/estimate.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

struct TwoShotMap {
    TwoShotMap(const Layout& layout, int ranks);
    ScratchMap scratch;
    uint64_t send, receive, gather;  // areas of one slot a rank
    uint64_t sum;                    // where the codec does not reduce: a chunk
    uint64_t workspace;
};

class TwoShot : public SlicedExchange {
  public:
    explicit TwoShot(const ExchangeContext& context);

  protected:
    enum class Area { kSend, kReceive, kGather };
    [[nodiscard]] char* area(Area which, int slice) const noexcept;
    // The server's residuals of a slice: they follow the worker's, chunk after chunk.
    [[nodiscard]] ResidualSpan server_residual(int slice) const noexcept;
    virtual Status encode_piece(int slice, const Piece& piece);
    virtual Status decode_piece(int slice, const Piece& piece);

  private:
    [[nodiscard]] bool rooted() const noexcept;
    [[nodiscard]] bool delivers() const noexcept;  // whether this rank gets the result
    Status encode(int slice) override;
    Status place_own(int slice) override;
    Status between(int hop, int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    TwoShotMap map_;
};

// The same for EF21 (codecs/residual/estimate.h), both ways: a worker encodes what its contribution
// differs by from its estimate, which takes up what it sent; the sums of that, with what encoding
// them lost so far, are what every rank's copy of the shared estimate takes up, and that copy is
// the result. Residuals of a tensor: own estimates, server's residuals, shared estimates. They are
// equal, or fit each other, on all ranks, so a rank without them would be an error. Pieces that
// feed nothing are as ever.
class EstimatedTwoShot final : public TwoShot {
  public:
    explicit EstimatedTwoShot(const ExchangeContext& context) : TwoShot(context) {}

  private:
    Status encode_piece(int slice, const Piece& piece) override;
    Status decode_piece(int slice, const Piece& piece) override;
};

TwoShotMap::TwoShotMap(const Layout& layout, int ranks)
    : scratch(layout),
      send(scratch.add_slots(ranks)),
      receive(scratch.add_slots(ranks)),
      gather(scratch.add_slots(ranks)) {
    uint64_t summed = 0;
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            summed = std::max(
                summed, piece.codec.reduces()
                            ? 0
                            : static_cast<uint64_t>(piece.chunk_elems) * dtype_bytes(piece.dtype));
        }
    }
    sum = scratch.add_bytes(summed);
    workspace = scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes));
}

uint64_t wire_bytes(const PlannedCall& call, int rank) {
    const auto& [layout, signature, shape] = call;
    const auto total = static_cast<uint64_t>(layout.total_slot_bytes);
    const auto others = static_cast<uint64_t>(shape.ranks - 1);
    if (signature.op == Op::kReduce) {
        return others * total + (rank == signature.root_or_peer ? 0 : total);
    }
    return 2 * others * total;
}

ExchangeSizes sizes_of(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    ExchangeSizes sizes;
    const int not_root = signature.root_or_peer == 0 ? 1 : 0;
    sizes.wire_bytes = wire_bytes(call, not_root);
    // All ranks of a node send each remote rank a slot, twice; the second time the root alone.
    const auto per_node = static_cast<uint64_t>(shape.max_ranks_per_node);
    const uint64_t remote = static_cast<uint64_t>(shape.ranks) - per_node;
    sizes.node_wire_bytes = per_node * (signature.op == Op::kReduce ? remote + 1 : 2 * remote) *
                            static_cast<uint64_t>(layout.total_slot_bytes);
    sizes.scratch_bytes = TwoShotMap(layout, shape.ranks).scratch.bytes();
    // The worker's residual of the whole message, then the server's of this rank's chunks; fp32.
    uint64_t elems = layout.fed_elems();
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            elems += piece.has_residual ? static_cast<uint64_t>(piece.chunk_elems) : 0;
        }
    }
    sizes.residual_elems = elems;
    sizes.shared_begin = elems;
    sizes.estimate_elems = elems + layout.fed_elems();
    sizes.residual_runs = 2 * layout.fed_pieces();
    sizes.largest_run = static_cast<uint64_t>(layout.largest_piece());
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            sizes.largest_run =
                std::max(sizes.largest_run, static_cast<uint64_t>(piece.chunk_elems));
        }
    }
    return sizes;
}

TwoShot::TwoShot(const ExchangeContext& context)
    : SlicedExchange(context, 2, true), map_(context.plan.layout, context.state.shape.ranks) {
    workspace_ = context.scratch + map_.workspace;
}

bool TwoShot::rooted() const noexcept {
    return context_.plan.signature.op == Op::kReduce;
}

bool TwoShot::delivers() const noexcept {
    return !rooted() || rank() == context_.plan.signature.root_or_peer;
}

char* TwoShot::area(Area which, int slice) const noexcept {
    const uint64_t begin = which == Area::kSend      ? map_.send
                           : which == Area::kReceive ? map_.receive
                                                     : map_.gather;
    return context_.scratch + map_.scratch.half(begin, ranks(), slice);
}

Status TwoShot::encode_piece(int slice, const Piece& piece) {
    return encode_run(piece, random_of(slice, piece, 0), contribution(piece),
                      {piece.residual_offset, piece.order, piece.has_residual},
                      area(Area::kSend, slice) + piece.slot_offset, run_of(slice, piece));
}

Status TwoShot::encode(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(encode_piece(slice, piece));
    }
    const RawPart& raw = slice_at(slice).raw;
    return pack_raw(slice, area(Area::kSend, slice) + raw.slot_offset, raw.chunk_elems,
                    slice_at(slice).slot_bytes);
}

Status TwoShot::place_own(int slice) {
    const size_t own = static_cast<size_t>(rank()) * slot_bytes(slice);
    return copy_on_device(context_.api, area(Area::kReceive, slice) + own,
                          area(Area::kSend, slice) + own, slot_bytes(slice), wire(), "own slot");
}

// In slice and piece order.
SlicedExchange::ResidualSpan TwoShot::server_residual(int slice) const noexcept {
    const Layout& layout = context_.plan.layout;
    ResidualSpan server{static_cast<int64_t>(layout.fed_elems()),
                        static_cast<int64_t>(layout.fed_pieces())};
    for (int before = 0; before < slice; ++before) {
        for (const Piece& piece : slice_at(before).pieces) {
            server.pass(piece, piece.chunk_elems);
        }
    }
    return server;
}

Status TwoShot::between(int, int slice) {
    ResidualSpan server = server_residual(slice);
    const int64_t slot = slice_at(slice).slot_bytes;
    for (const Piece& piece : slice_at(slice).pieces) {
        const Average average = average_of(
            context_, piece.codec.reduces() || piece.dtype == DType::kFloat32, &piece.codec);
        DecodeReduceEncodeArgs args{};
        args.input = area(Area::kReceive, slice) + piece.slot_offset;
        args.output = area(Area::kGather, slice) + rank() * slot + piece.slot_offset;
        args.input_stride = slot;
        args.count = piece.chunk_count(rank());
        args.inputs = ranks();
        args.scale = average.sum_scale;
        args.input_scale = average.input_scale;
        args.sum_limit = average.sum_limit;
        args.params = piece.codec.params;
        args.dtype = piece.dtype;
        args.random = random_of(slice, piece, 0);
        args.workspace = workspace_;
        server.has_residual = piece.has_residual;
        if (args.count > 0) {
            SLIMWIRE_TRY(with_residual(server, args.count, [&](float* residual) {
                args.residual = residual;
                return piece.codec.reduces()
                           ? enqueue(context_.api, piece.codec, args, context_.work)
                           : reduce_decoded(piece, args, server, context_.scratch + map_.sum);
            }));
        }
        server.pass(piece, piece.chunk_elems);
    }
    const RawPart& raw = slice_at(slice).raw;
    return sum_raw(area(Area::kReceive, slice) + raw.slot_offset, slot, ranks(),
                   raw.chunk_count(rank()), average_of(context_),
                   area(Area::kGather, slice) + rank() * slot + raw.slot_offset);
}

Status TwoShot::send(int hop, int slice) {
    const size_t bytes = slot_bytes(slice);
    if (hop == 0) {
        return all_to_all(area(Area::kSend, slice), area(Area::kReceive, slice), bytes);
    }
    char* gathered = area(Area::kGather, slice);
    char* own = gathered + static_cast<size_t>(rank()) * bytes;
    if (!rooted()) {
        return all_gather(gathered, bytes, "ncclAllGather of the sums");
    }
    if (!delivers()) {
        return send_bytes(own, bytes, context_.plan.signature.root_or_peer);
    }
    for (int from = 0; from < ranks(); ++from) {
        if (from != rank()) {
            SLIMWIRE_TRY(receive_bytes(gathered + static_cast<size_t>(from) * bytes, bytes, from));
        }
    }
    return {};
}

Status TwoShot::decode_piece(int slice, const Piece& piece) {
    return decode_run(piece, area(Area::kGather, slice) + piece.slot_offset, result(piece),
                      run_of(slice, piece), false);
}

Status TwoShot::decode(int slice) {
    if (!delivers()) {
        return {};
    }
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(decode_piece(slice, piece));
    }
    const RawPart& raw = slice_at(slice).raw;
    return unpack_raw(slice, area(Area::kGather, slice) + raw.slot_offset, raw.chunk_elems,
                      slice_at(slice).slot_bytes);
}

Status EstimatedTwoShot::encode_piece(int slice, const Piece& piece) {
    if (!piece.has_residual) {
        return TwoShot::encode_piece(slice, piece);
    }
    char* const slots = area(Area::kSend, slice) + piece.slot_offset;
    float* const own = estimates() + piece.residual_offset;
    SLIMWIRE_TRY(encode_difference(piece, random_of(slice, piece, 0), contribution(piece), own,
                                   slots, run_of(slice, piece)));
    return take_up(piece, slots, run_of(slice, piece), false, own);
}

Status EstimatedTwoShot::decode_piece(int slice, const Piece& piece) {
    if (!piece.has_residual) {
        return TwoShot::decode_piece(slice, piece);
    }
    ResidualSpan server = server_residual(slice);
    for (const Piece* before = slice_at(slice).pieces.data(); before != &piece; ++before) {
        server.pass(*before, before->chunk_elems);
    }
    float* const shared = estimates() +
                          static_cast<int64_t>(context_.plan.residual.shared_estimate) +
                          piece.residual_offset;
    SLIMWIRE_TRY(take_up(piece, area(Area::kGather, slice) + piece.slot_offset,
                         run_of(slice, piece), true, shared));
    SLIMWIRE_TRY(deliver_estimate(piece.codec, shared, estimates() + piece.residual_offset,
                                  result(piece), piece.count, piece.chunk_elems));
    return enqueue(context_.api,
                   SettleArgs{.estimate = estimates() + server.first,
                              .output = nullptr,
                              .marks = marks() + rank(),
                              .count = piece.chunk_count(rank()),
                              .chunk_elems = piece.chunk_elems,
                              .dtype = context_.plan.signature.dtype},
                   context_.work);
}

std::string refuse_two_shot(const AlgorithmRequest& request) {
    const CodecSpec& codec = *request.action.codec;
    return all_reduce_encodings(request)
               ? ""
               : (codec.reduces() ? "a codec of its parts" : codec.to_string()) +
                     " does not reduce in one pass; write sparse";
}

std::string refuse_sparse(const AlgorithmRequest& request) {
    return all_reduce_encodings(request)
               ? request.action.codec->to_string() + " reduces in one pass; write two_shot"
               : "";
}

Layout layout_of(const AlgorithmRequest& request, uint64_t slice_bytes) {
    return make_layout(segments_of(request), request.signature.dtype, request.shape.ranks,
                       slice_bytes, residual_dtype_of(request));
}

std::vector<std::string> steps_of(const Plan& plan, const PlanShape& shape) {
    const std::string others = std::to_string(shape.ranks - 1);
    const bool to_root = plan.signature.op == Op::kReduce;
    return {"encode " + std::to_string(shape.ranks) + " chunks, one for each rank",
            "send a chunk to each of " + others + " ranks, get as many",
            plan.algorithm == Algorithm::kSparse ? "decode and add them, encode the sum"
                                                 : "add them as they are decoded, encode",
            to_root ? "send that to the root" : "send that to " + others + " ranks, get as many",
            to_root ? "decode on the root" : "decode"};
}

Exchange* make(const ExchangeContext& context, ExchangeRoom* room) {
    return context.plan.error_feedback == ErrorFeedback::kEf21
               ? room->emplace<EstimatedTwoShot>(context)
               : room->emplace<TwoShot>(context);
}

// As TwoShot::server_residual().
void sum_runs(const Plan& plan, const PlanShape&, int rank, const UseResidualRun& use) {
    auto first = static_cast<int64_t>(plan.layout.fed_elems());
    auto index = static_cast<int64_t>(plan.layout.fed_pieces());
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            if (piece.has_residual) {
                use({first, index, piece.chunk_count(rank),
                     piece.residual_offset + piece.chunk_begin(rank)});
                first += piece.chunk_elems;
                ++index;
            }
        }
    }
}

constexpr AlgorithmDescriptor described(decltype(AlgorithmDescriptor::refuse) refuse) {
    return {.segment_ops = bit_of(Op::kAllReduce) | bit_of(Op::kReduce),
            .encodes_contributions = true,
            .refuse = refuse,
            .layout = layout_of,
            .sizes = sizes_of,
            .wire_bytes = wire_bytes,
            .residual_runs = message_runs,
            .steps = steps_of,
            .make = make,
            .sum_runs = sum_runs,
            .averages_sums = true};
}

}  // namespace

extern constinit const AlgorithmDescriptor kTwoShotAlgorithm = described(refuse_two_shot);
extern constinit const AlgorithmDescriptor kSparseAlgorithm = described(refuse_sparse);

}  // namespace slimwire
