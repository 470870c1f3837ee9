// All-reduce, reduce-scatter and reduce of a linear codec: what it encodes is elements of the
// call's type, and those of all ranks add up place by place, so the real NCCL operation sums the
// encodings themselves, with whatever algorithm and hardware NCCL has for it. Values are quantised
// once.
//
// Every rank must encode the same choice of elements: it is drawn from the codec's seed, the
// tensor, the chunk and the step (never the rank), and compressed collectives of a communicator are
// counted alike on all ranks.
//
// Bytes a rank gives to the transport: as for the native operation on the encoded values.
#include "collectives/algorithms/algorithm.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

// A linear encoding begins with words that are equal on all ranks; elements follow to its end.
constexpr size_t kHeaderBytes = 16;

// Elements of a piece's encoding.
size_t values_of(const Piece& piece, DType dtype) noexcept {
    return (static_cast<size_t>(piece.codec.encoded_bytes(dtype, piece.count)) - kHeaderBytes) /
           dtype_bytes(dtype);
}

int blocks_of(Op op, int ranks) noexcept {
    return op == Op::kReduceScatter ? ranks : 1;
}

struct SummableMap {
    SummableMap(const Layout& layout, const CallSignature& signature, int ranks);
    ScratchMap scratch;
    int send_slots;
    uint64_t send, result;  // areas; the same for operations in place
    uint64_t workspace;
};

class Summable final : public SlicedExchange {
  public:
    explicit Summable(const ExchangeContext& context);

  private:
    [[nodiscard]] Op op() const noexcept { return context_.plan.signature.op; }
    [[nodiscard]] char* send_slot(int slice, int block) const noexcept;
    [[nodiscard]] char* result_slot(int slice) const noexcept;
    Status encode(int slice) override;
    Status send(int hop, int slice) override;
    Status decode(int slice) override;

    SummableMap map_;
};

SummableMap::SummableMap(const Layout& layout, const CallSignature& signature, int ranks)
    : scratch(layout), send_slots(blocks_of(signature.op, ranks)) {
    send = scratch.add_slots(send_slots);
    result = signature.op == Op::kReduceScatter ? scratch.add_slots(1) : send;
    workspace = scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes));
}

uint64_t wire_bytes(const PlannedCall& call, int rank) {
    const auto& [layout, signature, shape] = call;
    uint64_t bytes = 0;
    CallSignature values = signature;
    for (const Slice& slice : layout.slices) {
        if (signature.op == Op::kReduceScatter) {
            values.count = static_cast<uint64_t>(slice.slot_bytes) / dtype_bytes(signature.dtype);
            bytes += native_wire_bytes(values, shape.ranks, rank);
            continue;
        }
        for (const Piece& piece : slice.pieces) {
            values.count = values_of(piece, signature.dtype);
            bytes += native_wire_bytes(values, shape.ranks, rank);
        }
    }
    return bytes;
}

ExchangeSizes sizes_of(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    ExchangeSizes sizes;
    sizes.wire_bytes = wire_bytes(call, kNeediestRank);
    sizes.node_wire_bytes = sizes.wire_bytes;  // as native ones do
    sizes.scratch_bytes = SummableMap(layout, signature, shape.ranks).scratch.bytes();
    const auto blocks = static_cast<uint64_t>(blocks_of(signature.op, shape.ranks));
    sizes.residual_elems = blocks * signature.count;
    sizes.residual_runs = blocks * layout.fed_pieces();
    sizes.largest_run = static_cast<uint64_t>(layout.largest_piece());
    return sizes;
}

Summable::Summable(const ExchangeContext& context)
    : SlicedExchange(context, 1, true),
      map_(context.plan.layout, context.plan.signature, context.state.shape.ranks) {
    workspace_ = context.scratch + map_.workspace;
}

char* Summable::send_slot(int slice, int block) const noexcept {
    return context_.scratch + map_.scratch.half(map_.send, map_.send_slots, slice) +
           static_cast<size_t>(block) * slot_bytes(slice);
}

char* Summable::result_slot(int slice) const noexcept {
    return context_.scratch + map_.scratch.half(map_.result, 1, slice);
}

Status Summable::encode(int slice) {
    const auto count = static_cast<int64_t>(context_.plan.signature.count);
    const auto pieces = static_cast<int64_t>(context_.plan.layout.fed_pieces());
    for (int block = 0; block < map_.send_slots; ++block) {
        for (const Piece& piece : slice_at(slice).pieces) {
            const int64_t offset = block * count + static_cast<int64_t>(piece.offset_elems);
            SLIMWIRE_TRY(encode_run(
                piece, random_of(slice, piece, static_cast<uint32_t>(block)),
                static_cast<const char*>(context_.call.send) + offset * element_bytes(),
                {offset, block * pieces + piece.order}, send_slot(slice, block) + piece.slot_offset,
                run_of(slice, piece), average_of(context_).mean));
        }
    }
    return {};
}

Status Summable::send(int, int slice) {
    const auto dtype = static_cast<ncclDataType_t>(context_.plan.signature.dtype);
    const ncclComm_t comm = context_.state.exchange_comm;
    const RealNccl& nccl = context_.nccl;
    if (op() == Op::kReduceScatter) {
        // Slots lie back to back, so headers are summed too; decode() puts the own one back.
        return nccl_status(
            nccl,
            nccl.ReduceScatter(send_slot(slice, 0), result_slot(slice),
                               slot_bytes(slice) / static_cast<size_t>(element_bytes()), dtype,
                               ncclSum, comm, wire()),
            "ncclReduceScatter of encoded values");
    }
    for (const Piece& piece : slice_at(slice).pieces) {
        char* values = result_slot(slice) + piece.slot_offset + kHeaderBytes;
        const size_t count = values_of(piece, context_.plan.signature.dtype);
        SLIMWIRE_TRY(
            op() == Op::kReduce
                ? nccl_status(nccl,
                              nccl.Reduce(values, values, count, dtype, ncclSum,
                                          context_.plan.signature.root_or_peer, comm, wire()),
                              "ncclReduce of encoded values")
                : nccl_status(nccl,
                              nccl.AllReduce(values, values, count, dtype, ncclSum, comm, wire()),
                              "ncclAllReduce of encoded values"));
    }
    return {};
}

Status Summable::decode(int slice) {
    if (op() == Op::kReduce && rank() != context_.plan.signature.root_or_peer) {
        return {};
    }
    for (const Piece& piece : slice_at(slice).pieces) {
        char* slot = result_slot(slice) + piece.slot_offset;
        if (op() == Op::kReduceScatter) {
            SLIMWIRE_TRY(copy_on_device(context_.api, slot,
                                        send_slot(slice, rank()) + piece.slot_offset, kHeaderBytes,
                                        context_.work, "header of the sum"));
        }
        SLIMWIRE_TRY(decode_run(piece, slot, result(piece), run_of(slice, piece), false));
    }
    return {};
}

std::string refuse(const AlgorithmRequest& request) {
    const CodecSpec& codec = *request.action.codec;
    return codec.traits(request.signature.dtype).linear
               ? ""
               : "encodings of " + codec.to_string() + " do not add up";
}

std::vector<std::string> steps_of(const Plan&, const PlanShape&) {
    return {"encode", "sum the encodings by NCCL's own operation", "decode"};
}

Exchange* make(const ExchangeContext& context, ExchangeRoom* room) {
    return room->emplace<Summable>(context);
}

}  // namespace

extern constinit const AlgorithmDescriptor kSummableAlgorithm{
    .encodes_contributions = true,
    .draws_alike = true,
    .refuse = refuse,
    .layout = block_layout,
    .sizes = sizes_of,
    .wire_bytes = wire_bytes,
    .residual_runs = block_runs,
    .steps = steps_of,
    .make = make,
};

}  // namespace slimwire
