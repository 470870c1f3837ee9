#include "collectives/algorithms/factored_blocks.h"

#include "collectives/algorithms/direct.h"
#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

constexpr uint64_t kAlignment = 256;

uint64_t aligned(uint64_t bytes) noexcept {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t floats(int64_t elems) noexcept {
    return static_cast<uint64_t>(elems) * sizeof(float);
}

// Slots to send, slots to receive, columns to begin with, sums of runs.
struct BlocksMap {
    BlocksMap(const Layout& layout, const CallSignature& signature, int ranks) {
        const bool message = is_point_to_point(signature.op);
        const auto slots = static_cast<uint64_t>(message ? 1 : ranks);
        const auto slot = static_cast<uint64_t>(layout.max_slot_bytes);
        const LowRankLayout& factors = layout.factored->factors;
        received = signature.op == Op::kAllToAll ? slots * slot : 0;
        begin = received + slots * slot;
        work = begin + aligned(floats(factors.right_elems));
        bytes = work + aligned(floats(factors.work_elems));
    }
    uint64_t received, begin, work, bytes;
};

}  // namespace

bool factors_blocks(const AlgorithmRequest& request) {
    const Op op = request.signature.op;
    return request.action.low_rank() && !autoencodes(*request.action.codec) &&
           request.action.error_feedback == ErrorFeedback::kNone &&
           (is_point_to_point(op) || op == Op::kAllToAll || op == Op::kAllGather);
}

Layout factored_blocks_layout(const AlgorithmRequest& request) {
    Layout layout = factored_layout(
        *request.action.codec, static_cast<int>(request.action.codec->params.kept),
        {request.matrices.begin(), request.matrices.end()}, request.signature.count);
    const FactoredMessage& message = *layout.factored;
    const uint64_t raw =
        static_cast<uint64_t>(message.raw.chunk_elems) * dtype_bytes(request.signature.dtype);
    layout.max_slot_bytes = layout.total_slot_bytes = static_cast<int64_t>(
        aligned(aligned(floats(message.factors.left_elems + message.factors.right_elems)) + raw));
    return layout;
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
    const Plan& plan = context_.plan;
    const FactoredMessage& message = *plan.layout.factored;
    const BlocksMap map(plan.layout, plan.signature, ranks());
    LowRankArgs args{};
    args.left = reinterpret_cast<float*>(slot);
    args.right = args.left + message.factors.left_elems;
    args.state = reinterpret_cast<float*>(context_.scratch + map.begin);
    args.work = reinterpret_cast<float*>(context_.scratch + map.work);
    args.scale = args.mean = args.result = 1.0f;
    args.dtype = plan.signature.dtype;
    args.rank = static_cast<int32_t>(message.codec.params.kept);
    args.state_rank = message.state_rank;
    args.random = context_.random;
    args.random.seed += message.codec.params.seed;
    return args;
}

char* FactoredBlocks::raw_of(char* slot) const noexcept {
    const LowRankLayout& factors = context_.plan.layout.factored->factors;
    return slot + aligned(floats(factors.left_elems + factors.right_elems));
}

Status FactoredBlocks::encode(int block, char* slot) {
    const CallSignature& signature = context_.plan.signature;
    const FactoredMessage& message = *context_.plan.layout.factored;
    const auto bytes = static_cast<int64_t>(dtype_bytes(signature.dtype));
    auto* const input = const_cast<char*>(static_cast<const char*>(context_.call.send)) +
                        block * static_cast<int64_t>(signature.count) * bytes;
    LowRankArgs args = args_of(slot);
    args.input = input;
    // Columns without content are drawn.
    SLIMWIRE_TRY(cuda_status(context_.api,
                             context_.api.memset_async(
                                 args.state, 0, floats(message.factors.right_elems), context_.work),
                             "columns to begin with"));
    for (const LowRankStep step : {LowRankStep::kBegin, LowRankStep::kMultiplyRight,
                                   LowRankStep::kOrthogonalise, LowRankStep::kMultiplyLeft}) {
        SLIMWIRE_TRY(enqueue(context_.api, step, message.factors, args, context_.work));
    }
    return move_raw_part(context_, message.raw, input, raw_of(slot), message.raw.chunk_elems,
                         message.raw.chunk_elems * bytes, true);
}

Status FactoredBlocks::decode(char* slot, int block) {
    const CallSignature& signature = context_.plan.signature;
    const FactoredMessage& message = *context_.plan.layout.factored;
    const auto bytes = static_cast<int64_t>(dtype_bytes(signature.dtype));
    char* const output = static_cast<char*>(context_.call.recv) +
                         block * static_cast<int64_t>(signature.count) * bytes;
    LowRankArgs args = args_of(slot);
    args.output = output;
    SLIMWIRE_TRY(
        enqueue(context_.api, LowRankStep::kRestore, message.factors, args, context_.work));
    return move_raw_part(context_, message.raw, output, raw_of(slot), message.raw.chunk_elems,
                         message.raw.chunk_elems * bytes, false);
}

Status FactoredBlocks::kernels(int) {
    if (op() != Op::kAllToAll) {
        return op() == Op::kRecv ? Status() : encode(0, slot(rank(), false));
    }
    for (int block = 0; block < ranks(); ++block) {
        SLIMWIRE_TRY(block == rank() ? Status() : encode(block, slot(block, false)));
    }
    return {};
}

Status FactoredBlocks::exchange(int) {
    const RealNccl& nccl = context_.nccl;
    const auto bytes = static_cast<size_t>(context_.plan.layout.max_slot_bytes);
    const auto send = [&](int to, const char* from) {
        return nccl_status(
            nccl,
            nccl.Send(from, bytes, ncclUint8, to, context_.state.exchange_comm, context_.work),
            "ncclSend of factors");
    };
    const auto receive = [&](int from, char* to) {
        return nccl_status(
            nccl,
            nccl.Recv(to, bytes, ncclUint8, from, context_.state.exchange_comm, context_.work),
            "ncclRecv of factors");
    };
    const int peer = context_.plan.signature.root_or_peer;
    if (is_point_to_point(op())) {
        return op() == Op::kSend ? send(peer, slot(peer, false)) : receive(peer, slot(peer, false));
    }
    for (int step = 1; step < ranks(); ++step) {
        const int to = (rank() + step) % ranks(), from = (rank() + ranks() - step) % ranks();
        SLIMWIRE_TRY(send(to, slot(op() == Op::kAllGather ? rank() : to, false)));
        SLIMWIRE_TRY(receive(from, slot(from, true)));
    }
    return {};
}

Status FactoredBlocks::finish(int) {
    if (is_point_to_point(op())) {
        return op() == Op::kSend ? Status() : decode(slot(0, false), 0);
    }
    SLIMWIRE_TRY(op() == Op::kAllToAll ? copy_own_block(context_) : Status());
    for (int block = 0; block < ranks(); ++block) {
        const bool copied = op() == Op::kAllToAll && block == rank();
        SLIMWIRE_TRY(copied ? Status() : decode(slot(block, true), block));
    }
    return {};
}

}  // namespace slimwire
