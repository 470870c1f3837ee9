#include "collectives/algorithms/algorithms.h"

#include <algorithm>

namespace slimwire {

namespace {

std::string why_not_hierarchical(const CallSignature& signature,
                                 const PlanShape& shape,
                                 const Action& action) {
    if (shape.nodes == nullptr || shape.nodes->nodes() == 1) {
        return "all ranks are on one node, and hierarchical compresses between nodes";
    }
    if (!action.intra_codec) {
        return {};
    }
    if (!action.intra_codec->accepts(signature.dtype)) {
        return action.intra_codec->to_string() + " does not take " + dtype_name(signature.dtype);
    }
    return action.intra_codec->traits(signature.dtype).low_rank
               ? action.intra_codec->to_string() + " goes by low_rank alone"
               : "";
}

// Whether all codecs of the message reduce in one pass.
bool all_reduce_encodings(const Action& action, const std::vector<Segment>& segments) {
    return action.codec->reduces() &&
           std::all_of(segments.begin(), segments.end(), [](const Segment& segment) {
               return segment.raw() || segment.codec.reduces();
           });
}

// Whether the algorithm runs with several segments.
bool takes_segments(Algorithm algorithm, Op op) {
    switch (algorithm) {
        case Algorithm::kTwoShot:
        case Algorithm::kSparse:
        case Algorithm::kGather:
            return true;
        case Algorithm::kHierarchical:
            return op != Op::kReduceScatter;
        case Algorithm::kDirect:
        case Algorithm::kSummable:
        case Algorithm::kLowRank:
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return false;
}

}  // namespace

std::vector<Algorithm> candidates(const CallSignature& signature,
                                  const PlanShape& shape,
                                  const Action& action,
                                  const std::vector<Segment>& segments) {
    if (action.algorithm != Algorithm::kAuto) {
        return {action.algorithm};
    }
    if (action.low_rank()) {
        return {Algorithm::kLowRank};
    }
    const Algorithm flat = !has_form(Algorithm::kTwoShot, signature.op) ? Algorithm::kDirect
                           : all_reduce_encodings(action, segments)     ? Algorithm::kTwoShot
                                                                        : Algorithm::kSparse;
    // Ranks of one node would each send to every rank of the others.
    if (has_form(Algorithm::kHierarchical, signature.op) && shape.scope == Scope::kInterNode &&
        shape.max_ranks_per_node > 1 && shape.nodes != nullptr) {
        return {Algorithm::kHierarchical, flat};
    }
    return {flat};
}

std::string why_not(Algorithm algorithm,
                    const CallSignature& signature,
                    const PlanShape& shape,
                    const Action& action,
                    const std::vector<Segment>& segments) {
    const CodecTraits traits = action.codec->traits(signature.dtype);
    if (!has_form(algorithm, signature.op)) {
        return std::string(algorithm_name(algorithm)) + " has no form of " + op_name(signature.op);
    }
    if (!segments.empty() && !takes_segments(algorithm, signature.op)) {
        return std::string(algorithm_name(algorithm)) + " of " + op_name(signature.op) +
               " has no form of messages whose parts differ";
    }
    if (traits.low_rank != (algorithm == Algorithm::kLowRank)) {
        return action.codec->to_string() + (traits.low_rank
                                                ? " goes by its factors; write low_rank or auto"
                                                : " has no factors of low rank");
    }
    if (action.error_feedback == ErrorFeedback::kEf21 && !has_estimates(algorithm, signature.op)) {
        return std::string("ef21 has no form of ") + op_name(signature.op) + " by " +
               algorithm_name(algorithm);
    }
    switch (algorithm) {
        case Algorithm::kTwoShot:
            return all_reduce_encodings(action, segments)
                       ? ""
                       : (action.codec->reduces() ? "a codec of its parts"
                                                  : action.codec->to_string()) +
                             " does not reduce in one pass; write sparse";
        case Algorithm::kSparse:
            return all_reduce_encodings(action, segments)
                       ? action.codec->to_string() + " reduces in one pass; write two_shot"
                       : "";
        case Algorithm::kHierarchical:
            return why_not_hierarchical(signature, shape, action);
        case Algorithm::kSummable:
            return traits.linear ? ""
                                 : "encodings of " + action.codec->to_string() + " do not add up";
        case Algorithm::kDirect:
        case Algorithm::kGather:
        case Algorithm::kLowRank:
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return {};
}

Layout layout_of(Algorithm algorithm,
                 const CallSignature& signature,
                 const PlanShape& shape,
                 const Action& action,
                 uint64_t slice_bytes,
                 const std::vector<Segment>& parts) {
    const std::vector<Segment> segments =
        parts.empty() ? std::vector<Segment>{{0, signature.count, *action.codec}} : parts;
    std::optional<DType> fed_dtype;
    if (action.error_feedback == ErrorFeedback::kEf21) {
        fed_dtype = DType::kFloat32;
    }
    if (algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kSparse) {
        return make_layout(segments, signature.dtype, shape.ranks, slice_bytes, fed_dtype);
    }
    const bool hierarchical = algorithm == Algorithm::kHierarchical;
    if (hierarchical && signature.op != Op::kReduceScatter) {
        return hierarchical_layout(segments, signature.dtype, *shape.nodes, action.intra_codec,
                                   slice_bytes);
    }
    // Of one block: the message is several of them.
    const uint64_t blocks = message_bytes(signature, shape.ranks) /
                            std::max<uint64_t>(1, signature.count * dtype_bytes(signature.dtype));
    const uint64_t of_block =
        slice_bytes == 0 ? 0 : std::max<uint64_t>(1, slice_bytes / std::max<uint64_t>(1, blocks));
    return hierarchical ? hierarchical_scatter_layout(segments, signature.dtype, action.intra_codec,
                                                      of_block)
                        : make_layout(segments, signature.dtype, 1, of_block, fed_dtype);
}

ExchangeSizes sizes_of(Algorithm algorithm,
                       const Layout& layout,
                       const CallSignature& signature,
                       const PlanShape& shape) {
    switch (algorithm) {
        case Algorithm::kTwoShot:
        case Algorithm::kSparse:
            return two_shot_sizes(layout, signature, shape);
        case Algorithm::kDirect:
            return direct_sizes(layout, signature, shape);
        case Algorithm::kHierarchical:
            return signature.op == Op::kReduceScatter
                       ? hierarchical_scatter_sizes(layout, signature, shape)
                       : hierarchical_sizes(layout, signature, shape);
        case Algorithm::kGather:
            return gather_sizes(layout, signature, shape);
        case Algorithm::kSummable:
            return summable_sizes(layout, signature, shape);
        case Algorithm::kLowRank:
            return low_rank_sizes(layout, signature, shape);
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return {};
}

uint64_t wire_bytes_of(const Plan& plan, const PlanShape& shape, int rank) noexcept {
    switch (plan.algorithm) {
        case Algorithm::kTwoShot:
        case Algorithm::kSparse:
            return two_shot_wire_bytes(plan.layout, plan.signature, shape.ranks, rank);
        case Algorithm::kDirect:
            return direct_wire_bytes(plan.layout, plan.signature, shape.ranks, rank);
        case Algorithm::kHierarchical:
            return plan.signature.op == Op::kReduceScatter
                       ? hierarchical_scatter_wire_bytes(plan.layout, plan.signature, *shape.nodes,
                                                         rank)
                       : hierarchical_wire_bytes(plan.layout, plan.signature, *shape.nodes, rank);
        case Algorithm::kGather:
            return gather_wire_bytes(plan.layout, shape.ranks);
        case Algorithm::kSummable:
            return summable_wire_bytes(plan.layout, plan.signature, shape.ranks, rank);
        case Algorithm::kLowRank:
            return low_rank_wire_bytes(plan.layout, plan.signature, shape.ranks, rank);
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return 0;
}

bool keeps_residual(const Plan& plan, int rank) noexcept {
    return plan.replicated_state() ||
           ((plan.error_feedback != ErrorFeedback::kNone || plan.adapts_threshold) &&
            (plan.algorithm != Algorithm::kDirect || direct_encodes(plan.signature, rank)));
}

bool encodes_contributions(const Plan& plan) noexcept {
    switch (plan.algorithm) {
        case Algorithm::kTwoShot:
        case Algorithm::kSparse:
        case Algorithm::kDirect:
        case Algorithm::kGather:
        case Algorithm::kSummable:
            return plan.error_feedback != ErrorFeedback::kEf21;
        case Algorithm::kHierarchical:
        case Algorithm::kLowRank:
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return false;
}

Exchange* make_exchange(const ExchangeContext& context, ExchangeRoom* room) {
    const bool estimates = context.plan.error_feedback == ErrorFeedback::kEf21;
    switch (context.plan.algorithm) {
        case Algorithm::kTwoShot:
        case Algorithm::kSparse:
            if (estimates) {
                return &room->emplace<EstimatedTwoShot>(context);
            }
            return &room->emplace<TwoShot>(context);
        case Algorithm::kDirect:
            if (estimates) {
                return &room->emplace<EstimatedScatter>(context);
            }
            return &room->emplace<Direct>(context);
        case Algorithm::kHierarchical:
            if (context.plan.signature.op == Op::kReduceScatter) {
                return &room->emplace<HierarchicalScatter>(context);
            }
            return &room->emplace<Hierarchical>(context);
        case Algorithm::kGather:
            if (estimates) {
                return &room->emplace<EstimatedGather>(context);
            }
            return &room->emplace<Gather>(context);
        case Algorithm::kSummable:
            return &room->emplace<Summable>(context);
        case Algorithm::kLowRank:
            return autoencodes(context.plan.layout.factored->codec)
                       ? &room->emplace<Autoencoder>(context)
                       : static_cast<Exchange*>(&room->emplace<LowRank>(context));
        case Algorithm::kAuto:
        case Algorithm::kNative:
            break;
    }
    return nullptr;
}

}  // namespace slimwire
