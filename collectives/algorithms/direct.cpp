#include "collectives/algorithms/direct.h"

#include <string>
#include <utility>

#include "collectives/algorithms/factored_blocks.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/algorithms/paired_exchange.h"
#include "collectives/plan/plan.h"

namespace slimwire {

DirectMap::DirectMap(const Layout& layout, const CallSignature& signature, int ranks)
    : scratch(layout) {
    switch (is_paired(layout) && !is_point_to_point(signature.op) ? Op::kAllToAll : signature.op) {
        case Op::kReduceScatter:
        case Op::kAllToAll:
            send_slots = receive_slots = ranks;
            break;
        case Op::kAllGather:
            send_slots = 0;  // in place
            receive_slots = ranks;
            break;
        case Op::kGather:
            send_slots = 1;
            receive_slots = ranks;
            break;
        case Op::kScatter:
            send_slots = ranks;
            receive_slots = 1;
            break;
        default:
            send_slots = 0;
            receive_slots = 1;
            break;
    }
    send = scratch.add_slots(send_slots);
    receive = scratch.add_slots(receive_slots);
    workspace = scratch.add_bytes(static_cast<uint64_t>(layout.workspace_bytes));
}

Direct::Direct(const ExchangeContext& context)
    : SlicedExchange(context, 1, context.alone || !is_point_to_point(context.plan.signature.op)),
      map_(context.plan.layout, context.plan.signature, context.state.shape.ranks) {
    workspace_ = context.scratch + map_.workspace;
}

char* Direct::send_slot(int slice, int block) const noexcept {
    if (map_.send_slots == 0) {
        return receive_slot(slice, block);
    }
    // A gather's contributor has one slot whatever its rank.
    const auto slot = static_cast<size_t>(map_.send_slots == 1 ? 0 : block);
    return context_.scratch + map_.scratch.half(map_.send, map_.send_slots, slice) +
           slot * slot_bytes(slice);
}

char* Direct::receive_slot(int slice, int block) const noexcept {
    if (is_point_to_point(op()) && !context_.alone && context_.plan.scratch.grouped_bytes > 0) {
        // All slices are under way at the same time.
        char* slot = context_.scratch + context_.plan.scratch.grouped_offset();
        for (int before = 0; before < slice; ++before) {
            slot += slot_bytes(before);
        }
        return slot;
    }
    const auto slot = static_cast<size_t>(map_.receive_slots == 1 ? 0 : block);
    return context_.scratch + map_.scratch.half(map_.receive, map_.receive_slots, slice) +
           slot * slot_bytes(slice);
}

// Whether the blocks lie back to back as chunks do, so that one operation takes them all.
bool Direct::whole_blocks(int slice) const noexcept {
    const Slice& cut = slice_at(slice);
    return slices() == 1 && cut.pieces.size() == 1 &&
           cut.pieces[0].chunk_elems == static_cast<int64_t>(context_.plan.signature.count);
}

Status Direct::encode_blocks(int slice, int first, int last, int base) {
    const auto count = static_cast<int64_t>(context_.plan.signature.count);
    const int64_t slot = slice_at(slice).slot_bytes;
    // Residuals that are stored apart have room for one block beside them.
    const bool whole = whole_blocks(slice) && !context_.plan.residual.staged;
    const int step = whole ? last - first : 1;
    const auto pieces = static_cast<int64_t>(context_.plan.layout.fed_pieces());
    for (int block = first; block < last; block += step) {
        for (const Piece& piece : slice_at(slice).pieces) {
            const int64_t offset =
                (block - base) * count + static_cast<int64_t>(piece.offset_elems);
            SLIMWIRE_TRY(encode_run(
                piece, random_of(slice, piece, static_cast<uint32_t>(block)),
                static_cast<const char*>(context_.call.send) + offset * element_bytes(),
                {offset, (block - base) * pieces + piece.order},
                send_slot(slice, block) + piece.slot_offset,
                {step * piece.count, piece.chunk_elems, slot}, average_of(context_).mean));
        }
    }
    return {};
}

Status Direct::decode_blocks(int slice, int first, int last, int base) {
    const auto count = static_cast<int64_t>(context_.plan.signature.count);
    const int64_t slot = slice_at(slice).slot_bytes;
    const int step = whole_blocks(slice) ? last - first : 1;
    for (int block = first; block < last; block += step) {
        for (const Piece& piece : slice_at(slice).pieces) {
            const int64_t offset =
                (block - base) * count + static_cast<int64_t>(piece.offset_elems);
            SLIMWIRE_TRY(
                decode_run(piece, receive_slot(slice, block) + piece.slot_offset,
                           static_cast<char*>(context_.call.recv) + offset * element_bytes(),
                           {step * piece.count, piece.chunk_elems, slot}, false));
        }
    }
    return {};
}

Status Direct::decode_sum(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(sum_slots(piece, receive_slot(slice, 0) + piece.slot_offset,
                               slice_at(slice).slot_bytes, ranks(), piece.count, result(piece),
                               sum_of_means(context_, ranks(), piece.codec.sums(), &piece.codec)));
    }
    return {};
}

// The own contribution to a sum lies among those that come.
Status Direct::place_own(int slice) {
    return op() != Op::kReduceScatter
               ? Status()
               : copy_on_device(context_.api, receive_slot(slice, rank()), send_slot(slice, rank()),
                                slot_bytes(slice), wire(), "own slot");
}

Status copy_own_block(const ExchangeContext& context) {
    const CallSignature& signature = context.plan.signature;
    const size_t bytes = signature.count * dtype_bytes(signature.dtype);
    const size_t own = static_cast<size_t>(context.state.rank) * bytes;
    const char* from = static_cast<const char*>(context.call.send);
    char* to = static_cast<char*>(context.call.recv);
    switch (signature.op) {
        case Op::kAllToAll:
            from += own;
            to += own;
            break;
        case Op::kAllGather:
            to += own;
            break;
        case Op::kBroadcast:
        case Op::kGather:
        case Op::kScatter:
            if (context.state.rank != signature.root_or_peer) {
                return {};
            }
            from += signature.op == Op::kScatter ? own : 0;
            to += signature.op == Op::kGather ? own : 0;
            break;
        default:
            return {};
    }
    if (from == to) {
        return {};
    }
    return copy_on_device(context.api, to, from, bytes, context.work, "own block");
}

Status Direct::encode(int slice) {
    if (!descriptor_of(Algorithm::kDirect).encodes(context_.plan.signature, rank())) {
        return {};
    }
    switch (op()) {
        case Op::kReduceScatter:
            return encode_blocks(slice, 0, ranks(), 0);
        case Op::kAllToAll:
        case Op::kScatter:
            SLIMWIRE_TRY(encode_blocks(slice, 0, rank(), 0));
            return encode_blocks(slice, rank() + 1, ranks(), 0);
        default:
            return encode_blocks(slice, rank(), rank() + 1, rank());
    }
}

Status Direct::send(int, int slice) {
    const size_t bytes = slot_bytes(slice);
    switch (op()) {
        case Op::kReduceScatter:
        case Op::kAllToAll:
            return all_to_all(send_slot(slice, 0), receive_slot(slice, 0), bytes);
        case Op::kAllGather:
            return all_gather(receive_slot(slice, 0), bytes, "ncclAllGather of encoded bytes");
        case Op::kBroadcast: {
            char* slot = receive_slot(slice, 0);
            return nccl_status(context_.nccl,
                               context_.nccl.Broadcast(slot, slot, bytes, ncclUint8, root(),
                                                       context_.state.exchange_comm, wire()),
                               "ncclBroadcast of encoded bytes");
        }
        case Op::kGather:
            if (rank() != root()) {
                return send_bytes(send_slot(slice, rank()), bytes, root());
            }
            for (int from = 0; from < ranks(); ++from) {
                if (from != rank()) {
                    SLIMWIRE_TRY(receive_bytes(receive_slot(slice, from), bytes, from));
                }
            }
            return {};
        case Op::kScatter:
            if (rank() != root()) {
                return receive_bytes(receive_slot(slice, rank()), bytes, root());
            }
            for (int to = 0; to < ranks(); ++to) {
                if (to != rank()) {
                    SLIMWIRE_TRY(send_bytes(send_slot(slice, to), bytes, to));
                }
            }
            return {};
        case Op::kSend:
            return send_bytes(send_slot(slice, 0), bytes, root());
        case Op::kRecv:
            return receive_bytes(receive_slot(slice, 0), bytes, root());
        default:
            return {Code::kInternalError, "an operation without a direct form"};
    }
}

Status Direct::decode(int slice) {
    // Not before the first exchange, which need not wait for it.
    if (slice == 0 && (op() == Op::kAllToAll || op() == Op::kGather || op() == Op::kScatter)) {
        SLIMWIRE_TRY(copy_own_block(context_));
    }
    const bool at_root = rank() == root();
    if (op() == Op::kSend || (op() == Op::kGather && !at_root) ||
        (op() == Op::kScatter && at_root)) {
        return {};
    }
    switch (op()) {
        case Op::kReduceScatter:
            return decode_sum(slice);
        case Op::kAllGather:
            return decode_blocks(slice, 0, ranks(), 0);
        case Op::kAllToAll:
        case Op::kGather:
            SLIMWIRE_TRY(decode_blocks(slice, 0, rank(), 0));
            return decode_blocks(slice, rank() + 1, ranks(), 0);
        default:
            return decode_blocks(slice, rank(), rank() + 1, rank());
    }
}

namespace {

// Of a block on the wire.
uint64_t total_bytes(const Layout& layout, const CallSignature& signature) {
    return is_paired(layout) ? paired_wire_bytes(layout, signature)
           : layout.factored != nullptr && !is_learned(layout)
               ? factored_blocks_wire(layout, signature)
               : static_cast<uint64_t>(layout.total_slot_bytes);
}

uint64_t wire_bytes(const PlannedCall& call, int rank) {
    const auto& [layout, signature, shape] = call;
    const int ranks = shape.ranks;
    const uint64_t total = total_bytes(layout, signature);
    const auto others = static_cast<uint64_t>(ranks - 1);
    const int root = signature.root_or_peer;
    switch (signature.op) {
        case Op::kBroadcast:
            return (rank + 1) % ranks == root ? 0 : total;
        case Op::kGather:
            return rank == root ? 0 : total;
        case Op::kScatter:
            return rank == root ? others * total : 0;
        case Op::kSend:
            return total;
        case Op::kRecv:
            return 0;
        default:
            return others * total;
    }
}

bool encodes(const CallSignature& signature, int rank) {
    switch (signature.op) {
        case Op::kBroadcast:
        case Op::kScatter:
            return rank == signature.root_or_peer;
        case Op::kGather:
            return rank != signature.root_or_peer;
        case Op::kRecv:
            return false;
        default:
            return true;
    }
}

// Messages go from rank to rank, but rings of NCCL leave a node once.
uint64_t node_wire_bytes(const CallSignature& signature, const PlanShape& shape, uint64_t total) {
    const auto ranks = static_cast<uint64_t>(shape.ranks);
    const auto per_node = static_cast<uint64_t>(shape.max_ranks_per_node);
    switch (signature.op) {
        case Op::kReduceScatter:
        case Op::kAllToAll:
            return per_node * (ranks - per_node) * total;
        case Op::kScatter:
            return (ranks - (shape.nodes == nullptr
                                 ? per_node
                                 : static_cast<uint64_t>(shape.nodes->size_of(
                                       shape.nodes->node_of(signature.root_or_peer))))) *
                   total;
        case Op::kGather:
            return per_node * total;
        case Op::kAllGather:
            return (ranks - 1) * total;
        default:
            return total;
    }
}

ExchangeSizes sizes_of(const PlannedCall& call) {
    const auto& [layout, signature, shape] = call;
    ExchangeSizes sizes;
    const uint64_t total = total_bytes(layout, signature);
    const auto ranks = static_cast<uint64_t>(shape.ranks);
    const bool to_all = signature.op == Op::kReduceScatter || signature.op == Op::kAllToAll ||
                        signature.op == Op::kScatter;
    // Both ends of a message must decide alike, so a receiver counts what its sender sends.
    sizes.wire_bytes = to_all || signature.op == Op::kAllGather ? (ranks - 1) * total : total;
    sizes.node_wire_bytes = node_wire_bytes(signature, shape, total);
    const bool message = is_point_to_point(signature.op);
    sizes.scratch_bytes = is_learned(layout) && message ? learned_code_scratch(layout, signature)
                          : is_learned(layout) ? shared_code_scratch(layout, signature, shape.ranks)
                          : layout.factored != nullptr
                              ? factored_blocks_scratch(layout, signature, shape.ranks)
                              : DirectMap(layout, signature, shape.ranks).scratch.bytes();
    sizes.grouped_bytes = message && layout.slices.size() > 2 ? total : 0;
    const uint64_t blocks = to_all ? ranks : 1;
    sizes.residual_elems = blocks * signature.count;
    sizes.residual_runs = blocks * layout.fed_pieces();
    // Estimates of the blocks given, then of those got (estimates.cpp).
    sizes.shared_begin = sizes.residual_elems;
    sizes.estimate_elems = 2 * sizes.residual_elems;
    sizes.largest_run = static_cast<uint64_t>(layout.largest_piece());
    return sizes;
}

std::vector<std::string> steps_of(const Plan& plan, const PlanShape& shape) {
    if (is_paired(plan.layout) && plan.signature.direction == Direction::kBackward) {
        return {"take the values at the positions of the message forward that it answers",
                "send them without positions, and which message that is",
                "put them there, and zero elsewhere"};
    }
    if (is_paired(plan.layout)) {
        return {"keep what the codec chooses, and its positions until the answer comes",
                "send both to the peer, which keeps the positions, too", "decode"};
    }
    if (is_learned(plan.layout)) {
        std::string last = "rows of them; of an answer the weights' gradients";
        if (!is_point_to_point(plan.signature.op)) {
            last += ", whose sums over the ranks take " +
                    std::to_string(shared_code_step_wire(plan.layout, shape.ranks)) +
                    " bytes more behind the last one";
        }
        return {"numbers of the rows that this rank gives, by weights that learn",
                "send them where NCCL would send it", std::move(last)};
    }
    if (plan.layout.factored != nullptr && is_point_to_point(plan.signature.op) &&
        plan.signature.direction == Direction::kBackward) {
        return {"the right factors by the left ones of the message forward that it answers",
                "send them, and which message that is", "multiply with those left ones"};
    }
    if (plan.layout.factored != nullptr) {
        return {"factors of the matrices that this rank gives",
                "send them where NCCL would send it", "multiply"};
    }
    if (has_columns(plan.layout)) {
        return {"encode the columns of what this rank gives", "send them where NCCL would send it",
                "decode, and rows of the columns"};
    }
    return {"encode what this rank gives", "send it where NCCL would send it", "decode"};
}

Exchange* make(const ExchangeContext& context, ExchangeRoom* room) {
    if (is_paired(context.plan.layout)) {
        return room->emplace<PairedExchange>(context);
    }
    if (is_learned(context.plan.layout)) {
        return is_point_to_point(context.plan.signature.op) ? room->emplace<LearnedCode>(context)
                                                            : room->emplace<SharedCode>(context);
    }
    if (context.plan.layout.factored != nullptr) {
        return room->emplace<FactoredBlocks>(context);
    }
    if (has_columns(context.plan.layout)) {
        return make_column_blocks(context, room);
    }
    return context.plan.error_feedback == ErrorFeedback::kEf21
               ? make_estimated_scatter(context, room)
               : room->emplace<Direct>(context);
}

Layout layout_of(const AlgorithmRequest& request, uint64_t slice_bytes) {
    return request.action.pairs_masks()             ? paired_layout(request)
           : learns_code(request)                   ? learned_code_layout(request)
           : request.action.low_rank()              ? factored_blocks_layout(request)
           : goes_by_columns(*request.action.codec) ? column_layout(request)
                                                    : block_layout(request, slice_bytes);
}

std::string refuse(const AlgorithmRequest& request) {
    return request.action.pairs_masks() || learns_code(request) ? refuse_paired(request)
           : goes_by_columns(*request.action.codec)             ? refuse_columns(request)
                                                                : std::string();
}

}  // namespace

extern constinit const AlgorithmDescriptor kDirectAlgorithm{
    .encodes_contributions = true,
    .refuse = refuse,
    .layout = layout_of,
    .sizes = sizes_of,
    .wire_bytes = wire_bytes,
    .encodes = encodes,
    .residual_runs = block_runs,
    .steps = steps_of,
    .make = make,
};

}  // namespace slimwire
