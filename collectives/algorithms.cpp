#include "collectives/algorithms.h"

#include <algorithm>

namespace slimwire {

Algorithm choose_algorithm(const CallFacts& facts,
                           const PlanShape&,
                           Algorithm wanted,
                           const CodecSpec& codec,
                           std::string* reason) {
    const bool sums_everywhere = facts.op == Op::kAllReduce || facts.op == Op::kReduce;
    const Algorithm usual = sums_everywhere ? Algorithm::kTwoShot : Algorithm::kDirect;
    if (wanted != Algorithm::kAuto && wanted != usual) {
        *reason = std::string(algorithm_name(wanted)) + " has no form of " + op_name(facts.op);
        return Algorithm::kNative;
    }
    const CodecTraits traits = codec.traits(facts.dtype);
    if (traits.variable_size) {
        *reason = codec.to_string() + " has no fixed size, which the counts of NCCL calls need";
        return Algorithm::kNative;
    }
    return usual;
}

Layout layout_of(Algorithm algorithm,
                 const CallFacts& facts,
                 const PlanShape& shape,
                 const CodecSpec& codec,
                 uint64_t slice_bytes) {
    const std::vector<Segment> segments = {Segment{0, facts.count, codec}};
    if (algorithm == Algorithm::kTwoShot) {
        return make_layout(segments, facts.dtype, shape.ranks, slice_bytes);
    }
    // Of one block: the message is several of them.
    const uint64_t blocks = message_bytes(facts, shape.ranks) /
                            std::max<uint64_t>(1, facts.count * dtype_bytes(facts.dtype));
    const uint64_t of_block =
        slice_bytes == 0 ? 0 : std::max<uint64_t>(1, slice_bytes / std::max<uint64_t>(1, blocks));
    return make_layout(segments, facts.dtype, 1, of_block);
}

ExchangeSizes sizes_of(Algorithm algorithm,
                       const Layout& layout,
                       const CallFacts& facts,
                       const PlanShape& shape) {
    switch (algorithm) {
        case Algorithm::kTwoShot:
            return two_shot_sizes(layout, facts, shape);
        case Algorithm::kDirect:
            return direct_sizes(layout, facts, shape);
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return {};
}

uint64_t wire_bytes_of(const Plan& plan, int ranks, int rank) noexcept {
    switch (plan.algorithm) {
        case Algorithm::kTwoShot:
            return two_shot_wire_bytes(plan.layout, plan.facts, ranks, rank);
        case Algorithm::kDirect:
            return direct_wire_bytes(plan.layout, plan.facts, ranks, rank);
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return 0;
}

bool keeps_residual(const Plan& plan, int rank) noexcept {
    return plan.error_feedback != ErrorFeedback::kNone &&
           (plan.algorithm != Algorithm::kDirect || direct_encodes(plan.facts, rank));
}

Exchange* make_exchange(const ExchangeContext& context, ExchangeRoom* room) {
    switch (context.plan.algorithm) {
        case Algorithm::kTwoShot:
            return &room->emplace<TwoShot>(context);
        case Algorithm::kDirect:
            return &room->emplace<Direct>(context);
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return nullptr;
}

}  // namespace slimwire
