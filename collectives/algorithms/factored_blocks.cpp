#include "collectives/algorithms/factored_blocks.h"

#include "codecs/ops/sum_rows.h"
#include "codecs/sparse/masked_values.h"
#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/held_masks.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

// Slots to send, slots to receive, columns to begin with, sums of runs, contributions to a sum; of
// messages P of what is answered.
struct BlocksMap {
    BlocksMap(const Layout& layout, const CallSignature& signature, int ranks) {
        const bool message = is_point_to_point(signature.op);
        const auto slots = static_cast<uint64_t>(message ? 1 : ranks);
        const auto slot = static_cast<uint64_t>(layout.max_slot_bytes);
        const LowRankLayout& factors = layout.factored->factors;
        const bool sums = signature.op == Op::kReduceScatter;
        received = sums || signature.op == Op::kAllToAll ? slots * slot : 0;
        begin = received + aligned(slots * slot);
        work = begin + aligned(floats(factors.right_elems));
        rows = work + aligned(floats(factors.work_elems));
        row_bytes = aligned(signature.count * dtype_bytes(signature.dtype));
        answered = rows + (sums ? slots * row_bytes : 0);
        bytes = answered + (message ? aligned(factored_blocks_kept(layout)) : 0);
    }
    uint64_t received, begin, work, rows, row_bytes, answered, bytes;
};

}  // namespace

uint64_t FactorExchange::block_bytes() const noexcept {
    const CallSignature& signature = context_.plan.signature;
    return signature.count * dtype_bytes(signature.dtype);
}

LowRankArgs FactorExchange::factor_args(char* left,
                                        float* right,
                                        uint64_t work,
                                        int summed) const noexcept {
    LowRankArgs args{};
    args.left = reinterpret_cast<float*>(left);
    args.right = right;
    args.work = reinterpret_cast<float*>(context_.scratch + work);
    args.scale = 1.0f;
    args.dtype = context_.plan.signature.dtype;
    choose_scales(message().factors, summed, false, &args);
    args.rank = args.state_rank = static_cast<int32_t>(message().codec.params.kept);
    return args;
}

Status FactorExchange::run(LowRankStep step, const LowRankArgs& args) {
    return enqueue(context_.api, step, message().factors, args, context_.work);
}

Status FactorExchange::pack_raw(const void* buffer, char* raw) {
    const RawPart& part = message().raw;
    const auto bytes = static_cast<int64_t>(dtype_bytes(context_.plan.signature.dtype));
    return move_raw_part(context_, part, const_cast<void*>(buffer), raw, part.chunk_elems,
                         part.chunk_elems * bytes, true);
}

Status FactorExchange::unpack_raw(const char* raw, void* buffer) {
    const RawPart& part = message().raw;
    const auto bytes = static_cast<int64_t>(dtype_bytes(context_.plan.signature.dtype));
    return move_raw_part(context_, part, buffer, const_cast<char*>(raw), part.chunk_elems,
                         part.chunk_elems * bytes, false);
}

bool factors_blocks(const AlgorithmRequest& request) {
    const Op op = request.signature.op;
    return request.action.low_rank() && !autoencodes(*request.action.codec) &&
           request.action.error_feedback == ErrorFeedback::kNone &&
           (is_point_to_point(op) || op == Op::kAllToAll || op == Op::kAllGather ||
            (op == Op::kReduceScatter && request.signature.redop == RedOp::kSum));
}

Layout factored_blocks_layout(const AlgorithmRequest& request) {
    Layout layout = factored_layout(
        *request.action.codec, static_cast<int>(request.action.codec->params.kept),
        {request.matrices.begin(), request.matrices.end()}, request.signature.count);
    const FactoredMessage& message = *layout.factored;
    const uint64_t raw =
        static_cast<uint64_t>(message.raw.chunk_elems) * dtype_bytes(request.signature.dtype);
    const uint64_t trailer = is_point_to_point(request.signature.op) ? sizeof(MaskTrailer) : 0;
    layout.max_slot_bytes = layout.total_slot_bytes = static_cast<int64_t>(
        aligned(aligned(floats(message.factors.left_elems + message.factors.right_elems)) + raw) +
        trailer);
    return layout;
}

uint64_t factored_blocks_kept(const Layout& layout) noexcept {
    return (floats(layout.factored->factors.left_elems) + 15) / 16 * 16;
}

uint64_t factored_blocks_wire(const Layout& layout, const CallSignature& signature) {
    const bool answers =
        is_point_to_point(signature.op) && signature.direction == Direction::kBackward;
    return static_cast<uint64_t>(layout.max_slot_bytes) -
           (answers ? floats(layout.factored->factors.left_elems) : 0);
}

uint64_t factored_blocks_scratch(const Layout& layout, const CallSignature& signature, int ranks) {
    return BlocksMap(layout, signature, ranks).bytes;
}

char* FactoredBlocks::slot(int block, bool received) const noexcept {
    const BlocksMap map(context_.plan.layout, context_.plan.signature, ranks());
    const int at = is_point_to_point(op()) ? 0 : block;
    return context_.scratch + (received ? map.received : 0) +
           static_cast<int64_t>(at) * context_.plan.layout.max_slot_bytes;
}

LowRankArgs FactoredBlocks::args_of(char* slot) const noexcept {
    const BlocksMap map(context_.plan.layout, context_.plan.signature, ranks());
    LowRankArgs args = factor_args(
        slot, reinterpret_cast<float*>(slot) + message().factors.left_elems, map.work, 1);
    args.state = reinterpret_cast<float*>(context_.scratch + map.begin);
    args.state_rank = message().state_rank;
    args.random = context_.random;
    args.random.seed += message().codec.params.seed;
    return args;
}

char* FactoredBlocks::raw_of(char* slot) const noexcept {
    const LowRankLayout& factors = message().factors;
    return slot + aligned(floats(factors.left_elems + factors.right_elems));
}

char* FactoredBlocks::trailer_of(char* slot) const noexcept {
    return slot + context_.plan.layout.max_slot_bytes - sizeof(MaskTrailer);
}

Status FactoredBlocks::encode_answer(LowRankArgs args) {
    if (context_.pairs == nullptr || context_.pairs->answered == nullptr) {
        // Products with zeros, which are NaN where the gradient is not finite.
        SLIMWIRE_TRY(clear_on_device(context_.api, args.left, floats(message().factors.left_elems),
                                     context_.work, "answer to a message"));
    } else {
        args.left = const_cast<float*>(static_cast<const float*>(context_.pairs->answered));
    }
    return run(LowRankStep::kMultiplyLeft, args);
}

Status FactoredBlocks::encode(int block, char* slot) {
    LowRankArgs args = args_of(slot);
    args.input =
        static_cast<const char*>(context_.call.send) + static_cast<uint64_t>(block) * block_bytes();
    SLIMWIRE_TRY(pack_raw(args.input, raw_of(slot)));
    if (is_point_to_point(op())) {
        SLIMWIRE_TRY(write_trailer(context_, context_.pairs, trailer_of(slot), answers()));
        if (answers()) {
            return encode_answer(args);
        }
    }
    // Columns without content are drawn.
    SLIMWIRE_TRY(clear_on_device(context_.api, args.state, floats(message().factors.right_elems),
                                 context_.work, "columns to begin with"));
    for (const LowRankStep step : {LowRankStep::kBegin, LowRankStep::kMultiplyRight,
                                   LowRankStep::kOrthogonalise, LowRankStep::kMultiplyLeft}) {
        SLIMWIRE_TRY(run(step, args));
    }
    return is_point_to_point(op())
               ? keep_forward(context_, context_.pairs, slot, floats(message().factors.left_elems),
                              trailer_of(slot))
               : Status();
}

Status FactoredBlocks::decode(char* slot, void* output) {
    const uint64_t left = floats(message().factors.left_elems);
    LowRankArgs args = args_of(slot);
    args.output = output;
    if (is_point_to_point(op()) && answers()) {
        const BlocksMap map(context_.plan.layout, context_.plan.signature, ranks());
        args.left = reinterpret_cast<float*>(context_.scratch + map.answered);
        SLIMWIRE_TRY(take_answered(context_, trailer_of(slot), args.left, left));
    } else if (is_point_to_point(op())) {
        SLIMWIRE_TRY(keep_forward(context_, context_.pairs, slot, left, trailer_of(slot)));
    }
    SLIMWIRE_TRY(run(LowRankStep::kRestore, args));
    return unpack_raw(raw_of(slot), output);
}

Status FactoredBlocks::sum_contributions() {
    const CallSignature& signature = context_.plan.signature;
    const BlocksMap map(context_.plan.layout, signature, ranks());
    char* const rows = context_.scratch + map.rows;
    for (int source = 0; source < ranks(); ++source) {
        SLIMWIRE_TRY(
            decode(slot(source, true), rows + static_cast<uint64_t>(source) * map.row_bytes));
    }
    SumRowsArgs args{};
    args.input = rows;
    args.output = context_.call.recv;
    args.row_bytes = static_cast<int64_t>(map.row_bytes);
    args.count = static_cast<int64_t>(signature.count);
    args.rows = ranks();
    args.input_dtype = args.output_dtype = signature.dtype;
    return enqueue(context_.api, args, context_.work);
}

Status FactoredBlocks::kernels(int) {
    if (op() != Op::kAllToAll && op() != Op::kReduceScatter) {
        return op() == Op::kRecv ? Status() : encode(0, slot(rank(), false));
    }
    for (int block = 0; block < ranks(); ++block) {
        SLIMWIRE_TRY(copied(block) ? Status() : encode(block, slot(block, block == rank())));
    }
    return {};
}

Status FactoredBlocks::exchange(int) {
    const size_t bytes = factored_blocks_wire(context_.plan.layout, context_.plan.signature);
    const size_t skipped = static_cast<size_t>(context_.plan.layout.max_slot_bytes) - bytes;
    const int peer = context_.plan.signature.root_or_peer;
    if (is_point_to_point(op())) {
        char* const frame = slot(peer, false) + skipped;
        return op() == Op::kSend ? send(frame, bytes, peer) : receive(frame, bytes, peer);
    }
    for (int step = 1; step < ranks(); ++step) {
        const int to = (rank() + step) % ranks(), from = (rank() + ranks() - step) % ranks();
        const int given = op() == Op::kAllGather ? rank() : to;
        SLIMWIRE_TRY(send(slot(given, false) + skipped, bytes, to));
        SLIMWIRE_TRY(receive(slot(from, true) + skipped, bytes, from));
    }
    return {};
}

Status FactoredBlocks::finish(int) {
    char* const output = static_cast<char*>(context_.call.recv);
    if (is_point_to_point(op())) {
        return op() == Op::kSend ? Status() : decode(slot(0, false), output);
    }
    if (op() == Op::kReduceScatter) {
        return sum_contributions();
    }
    SLIMWIRE_TRY(op() == Op::kAllToAll ? copy_own_block(context_) : Status());
    for (int block = 0; block < ranks(); ++block) {
        SLIMWIRE_TRY(copied(block) ? Status()
                                   : decode(slot(block, true),
                                            output + static_cast<uint64_t>(block) * block_bytes()));
    }
    return {};
}

}  // namespace slimwire
