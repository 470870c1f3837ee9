#include "collectives/shared_scale.h"

#include "collectives/plan.h"

namespace slimwire {
namespace {

const CodecParams& params_of(const Layout& layout) noexcept {
    return layout.slices[0].pieces[0].codec.params;
}

}  // namespace

SharedScaleMap::SharedScaleMap(const Layout& layout, const CallFacts& facts, int ranks)
    : scratch(layout),
      groups(thc_groups(static_cast<int64_t>(facts.count))),
      words(thc_words(static_cast<int64_t>(facts.count),
                      params_of(layout).block,
                      params_of(layout).levels,
                      ranks)) {
    scales = scratch.add_bytes(static_cast<uint64_t>(groups) * sizeof(uint32_t));
    sums = scratch.add_bytes(static_cast<uint64_t>(words) * sizeof(uint64_t));
}

Layout shared_scale_layout(const CodecSpec& codec, const CallFacts& facts) {
    Piece piece;
    piece.count = static_cast<int64_t>(facts.count);
    piece.chunk_elems = piece.count;
    piece.codec = codec;
    piece.dtype = facts.dtype;
    Layout layout;
    layout.slices.emplace_back().pieces.push_back(piece);
    return layout;
}

uint64_t shared_scale_wire_bytes(const Layout& layout,
                                 const CallFacts& facts,
                                 int ranks,
                                 int rank) noexcept {
    const SharedScaleMap map(layout, facts, ranks);
    CallFacts part = facts;
    part.dtype = DType::kUint32;
    part.count = static_cast<uint64_t>(map.groups);
    const uint64_t scales = native_wire_bytes(part, ranks, rank);
    part.dtype = DType::kUint64;
    part.count = static_cast<uint64_t>(map.words);
    return scales + native_wire_bytes(part, ranks, rank);
}

ExchangeSizes shared_scale_sizes(const Layout& layout,
                                 const CallFacts& facts,
                                 const PlanShape& shape) {
    ExchangeSizes sizes;
    sizes.wire_bytes = shared_scale_wire_bytes(layout, facts, shape.ranks, kNeediestRank);
    sizes.node_wire_bytes = sizes.wire_bytes;  // as native ones do
    sizes.scratch_bytes = SharedScaleMap(layout, facts, shape.ranks).scratch.bytes();
    sizes.residual_elems = facts.count;
    sizes.residual_runs = 1;
    sizes.largest_run = facts.count;
    return sizes;
}

SharedScale::SharedScale(const ExchangeContext& context)
    : context_(context), map_(context.plan.layout, context.plan.facts, context.state.shape.ranks) {}

bool SharedScale::apart() const noexcept {
    return context_.residual != nullptr && context_.plan.residuals_apart;
}

float* SharedScale::window() const noexcept {
    return reinterpret_cast<float*>(context_.scratch + context_.plan.window_offset);
}

StoredResiduals SharedScale::stored() const noexcept {
    const Plan& plan = context_.plan;
    return {context_.residual, static_cast<int64_t>(plan.residual_elems), 0, plan.residual_type};
}

ThcArgs SharedScale::args() const noexcept {
    const Plan& plan = context_.plan;
    const CodecParams& params = params_of(plan.layout);
    ThcArgs args{};
    args.input = context_.call.send;
    args.output = context_.call.recv;
    args.residual = apart() ? window() : static_cast<float*>(context_.residual);
    args.scale_ptr = context_.scalar == nullptr ? nullptr : context_.scalar->device;
    args.scales = reinterpret_cast<uint32_t*>(context_.scratch + map_.scales);
    args.words = reinterpret_cast<uint64_t*>(context_.scratch + map_.sums);
    args.scale = context_.scalar == nullptr ? 1.0f : context_.scalar->value;
    args.ranks = context_.state.shape.ranks;
    args.result = plan.facts.redop == RedOp::kAvg ? 1.0f / static_cast<float>(args.ranks) : 1.0f;
    args.clip = params.fraction;
    args.count = static_cast<int64_t>(plan.facts.count);
    args.block = params.block;
    args.levels = params.levels;
    args.dtype = plan.facts.dtype;
    args.random = context_.random;
    args.random.seed += params.seed;
    return args;
}

Status SharedScale::take_residuals() {
    return apart()
               ? enqueue(context_.api,
                         TakeResidualArgs{.stored = stored(),
                                          .output = window(),
                                          .count = static_cast<int64_t>(context_.plan.facts.count)},
                         context_.work)
               : Status();
}

Status SharedScale::put_residuals() {
    if (!apart()) {
        return {};
    }
    const bool average = context_.plan.error_feedback == ErrorFeedback::kEma;
    PutResidualArgs args{};
    args.stored = stored();
    args.input = window();
    args.count = static_cast<int64_t>(context_.plan.facts.count);
    args.keep = average ? kEmaKeep : 0.0f;
    args.take = average ? 1.0f - kEmaKeep : 1.0f;
    args.random = context_.random;
    args.random.step += context_.drawn_before;
    return enqueue(context_.api, args, context_.work);
}

Status SharedScale::kernels(int phase) {
    switch (phase) {
        case 0:
            SLIMWIRE_TRY(take_residuals());
            return enqueue(context_.api, ThcStep::kMeasure, args(), context_.work);
        case 1:
            SLIMWIRE_TRY(enqueue(context_.api, ThcStep::kQuantise, args(), context_.work));
            return put_residuals();
        default:
            return enqueue(context_.api, ThcStep::kRestore, args(), context_.work);
    }
}

Status SharedScale::exchange(int phase) {
    const bool scales = phase == 0;
    void* const elements = context_.scratch + (scales ? map_.scales : map_.sums);
    const auto count = static_cast<size_t>(scales ? map_.groups : map_.words);
    return nccl_status(context_.nccl,
                       context_.nccl.AllReduce(
                           elements, elements, count, scales ? ncclUint32 : ncclUint64,
                           scales ? ncclMax : ncclSum, context_.state.exchange_comm, context_.work),
                       scales ? "ncclAllReduce of scales" : "ncclAllReduce of levels");
}

}  // namespace slimwire
