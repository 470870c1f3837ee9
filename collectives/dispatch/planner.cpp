#include "collectives/dispatch/planner.h"

#include <algorithm>
#include <utility>

#include "codecs/residual/load_store.h"
#include "collectives/adaptive/controller.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/algorithms/paired_exchange.h"
#include "collectives/call/hash.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/plan/comm_costs.h"
#include "collectives/plan/decision.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

constexpr char kOtherWay[] =
    "another codec or algorithm (slimwire explain says what a policy makes of such a call)";

// The plan that the call would have if change(Action*) had been made to its rule, in slices as the
// plan's, so that residuals of both lie alike.
Plan plan_after(const Plan& plan,
                uint64_t slice_bytes,
                const PlanShape& shape,
                const Config& config,
                const ParameterRanges* parameters,
                const std::function<void(Action*)>& change) {
    Config changed = config;
    changed.settings.slice_bytes = slice_bytes;
    for (Rule& rule : changed.policy.rules) {
        if (rule.name == plan.rule) {
            change(&rule.action);
            for (const HookKind* hook : kHooks) {
                if (hook->forget != nullptr) {
                    hook->forget(&rule.action);
                }
            }
        }
    }
    Plan made = make_plan(plan.signature, shape, changed, parameters);
    made.residual.shape = plan.residual.shape;
    made.needs_slot = plan.needs_slot;
    return made;
}

// Completes the plan, which was made by `action` for the rule of its name, with what that says
// beside a codec; what cannot be is why the call is native, and the plan is then to be thrown away.
std::string add_features(const Action& action,
                         uint64_t slice_bytes,
                         const PlanShape& shape,
                         const Config& config,
                         const ParameterRanges* parameters,
                         Plan* plan) {
    const PlanRequest request{
        action, shape, config, make_plan, [&](const std::function<void(Action*)>& change) {
            return plan_after(*plan, slice_bytes, shape, config, parameters, change);
        }};
    std::string against;
    for (const HookKind* hook : kHooks) {
        if (against.empty() && hook->add != nullptr) {
            against = hook->add(request, plan);
        }
    }
    for (const ControllerKind* controller : kControllers) {
        if (against.empty()) {
            against = controller->add(request, plan);
        }
    }
    return against;
}

// The native plan of a call that cannot be compressed on this communicator at all; of one that can
// it has no reason. Ranks that do not agree have said so.
Plan native_plan(const CallSignature& signature, const PlanShape& shape, const Policy& policy) {
    Plan plan;
    plan.signature = signature;
    if (shape.ranks == 1) {
        plan.reason = "one rank: nothing crosses a wire";
        plan.remedy = "a communicator of more ranks";
    } else if (!shape.go) {
        plan.reason = shape.native_reason;
    } else if (reduces(signature.op) && signature.redop != RedOp::kSum &&
               signature.redop != RedOp::kAvg && signature.redop != RedOp::kPreMulSum) {
        plan.reason = std::string(redop_name(signature.redop)) + " is not a sum";
        plan.remedy = "sums or averages";
    } else if (signature.count <= 1) {
        plan.reason = "at most one element";
        plan.remedy = "larger messages";
    }
    const Rule* const rule =
        plan.remedy == nullptr ? nullptr : first_with_codec(signature, shape, policy);
    plan.rule = rule == nullptr ? "" : rule->name;
    plan.remedy = rule == nullptr ? nullptr : plan.remedy;
    return plan;
}

// Whether a codec that needs error feedback has none.
bool lacks_feedback(const Decision& decision, const CallSignature& signature) {
    const auto needs = [&](const CodecSpec& codec) {
        return codec.traits(signature.dtype).needs_feedback;
    };
    const Action& action = decision.action;
    if (carries_activations(action, signature.op)) {
        return false;
    }
    if (!decision.segments.empty()) {
        return std::any_of(
            decision.segments.begin(), decision.segments.end(), [&](const Segment& segment) {
                return !segment.raw() && !segment.has_residual && needs(segment.codec);
            });
    }
    return action.error_feedback == ErrorFeedback::kNone &&
           (needs(*action.codec) || (action.intra_codec.has_value() && needs(*action.intra_codec)));
}

bool draws(const CodecSpec& codec, DType dtype) {
    const CodecTraits traits = codec.traits(dtype);
    return codec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic) ||
           traits.low_rank || traits.by_step;
}

// An algorithm's layout of the call, and its sizes.
struct Sized {
    Layout layout;
    ExchangeSizes sizes;
    bool estimates = false;  // residuals are those of ef21
};

Sized size_exchange(Algorithm algorithm, const AlgorithmRequest& request, uint64_t slice_bytes) {
    const CallSignature& signature = request.signature;
    const PlanShape& shape = request.shape;
    const AlgorithmDescriptor& descriptor = descriptor_of(algorithm);
    Sized out;
    out.layout = descriptor.layout(request, slice_bytes);
    if (signature.count > 0) {
        const uint64_t block_bytes = signature.count * dtype_bytes(signature.dtype);
        reserve_workspace(static_cast<int64_t>(message_bytes(signature, shape.ranks) / block_bytes),
                          shape.ranks, &out.layout);
    }
    out.sizes = descriptor.sizes({out.layout, signature, shape});
    out.estimates = request.action.error_feedback == ErrorFeedback::kEf21;
    if (out.estimates) {
        out.sizes.residual_elems = out.sizes.estimate_elems;
    }
    return out;
}

// What a call has of the bytes by which its weights learn: of a step, which is made once for so
// many calls forward and their answers.
uint64_t learning_bytes(const AlgorithmRequest& request, const Layout& layout) {
    if (!is_learned(layout) || is_point_to_point(request.signature.op)) {
        return 0;
    }
    const uint64_t calls = 2 * std::max<uint64_t>(request.action.pair_order().calls, 1);
    return (shared_code_step_wire(layout, request.shape.ranks) + calls - 1) / calls;
}

// Why the exchange would send more than NCCL; empty when it would not.
std::string why_larger(Algorithm algorithm, const AlgorithmRequest& request, const Layout& layout) {
    // A receiver decides as its sender does, and an answer goes as what it answers.
    CallSignature sender = request.signature;
    sender.op = sender.op == Op::kRecv ? Op::kSend : sender.op;
    sender.direction = Direction::kForward;
    const PlanShape& shape = request.shape;
    const ExchangeSizes sizes = descriptor_of(algorithm).sizes({layout, sender, shape});
    const uint64_t native = native_wire_bytes(sender, shape.ranks);
    const uint64_t wire = sizes.wire_bytes + learning_bytes(request, layout);
    if (wire >= native) {
        return std::string(algorithm_name(algorithm)) + " would send " + std::to_string(wire) +
               " bytes, native " + std::to_string(native);
    }
    // Pairwise exchanges between nodes of several ranks can send more over the slow link than
    // NCCL's ring, which leaves a node once, and by which it reduces.
    if (reduces(sender.op) && request.action.algorithm == Algorithm::kAuto &&
        shape.scope == Scope::kInterNode && shape.max_ranks_per_node > 1 &&
        sizes.node_wire_bytes >= native) {
        return (algorithm == Algorithm::kHierarchical ? "" : "flat ") +
               std::string(algorithm_name(algorithm)) + " would send " +
               std::to_string(sizes.node_wire_bytes) + " bytes out of a node, a native ring " +
               std::to_string(native);
    }
    return {};
}

bool keeps_residuals(const Action& action, const ExchangeSizes& sizes) noexcept {
    return action.error_feedback != ErrorFeedback::kNone && sizes.residual_elems > 0;
}

ResidualLayout residual_layout(const Action& action, const Sized& sized) {
    const ExchangeSizes& sizes = sized.sizes;
    ResidualLayout out;
    out.type = action.residual_type();
    out.elems = stored_elems(out.type, sizes.residual_elems, sizes.residual_runs);
    out.state_bytes = aligned(sizes.state_elems * sizeof(float), 256);
    out.bytes = out.state_bytes;
    if (keeps_residuals(action, sizes)) {
        out.bytes += stored_residual_bytes(out.type, out.elems);
        out.staged = !sized.estimates && (action.error_feedback != ErrorFeedback::kEf14 ||
                                          out.type != ResidualType::kFloat32);
    }
    out.shared_elems = sized.estimates ? out.elems : sizes.state_elems;
    out.shared_estimate = sized.estimates ? sizes.shared_begin : 0;
    if (!sized.estimates && sized.layout.threshold_bytes > 0) {
        const uint64_t begin = aligned(out.bytes, 16);
        const uint64_t end =
            begin + sizes.residual_runs * static_cast<uint64_t>(sized.layout.threshold_bytes);
        out.has_thresholds = end > out.bytes;
        out.thresholds_offset = out.has_thresholds ? begin : 0;
        out.bytes = end;
    }
    return out;
}

ScratchLayout scratch_layout(const Sized& sized, const ResidualLayout& residual, int ranks) {
    const ExchangeSizes& sizes = sized.sizes;
    const bool stages = sized.estimates || residual.staged;
    ScratchLayout out;
    out.staging_offset = aligned(sizes.scratch_bytes, 256);
    const uint64_t staging_end =
        out.staging_offset + (stages ? sizes.largest_run * sizeof(float) : 0);
    out.marks_offset = std::max(aligned(staging_end, 16), kMomentBytes);
    out.bytes = sized.estimates || sizes.state_elems > 0
                    ? out.marks_offset + static_cast<uint64_t>(ranks) * sizeof(uint32_t)
                : residual.staged ? staging_end
                                  : sizes.scratch_bytes;
    out.grouped_bytes = sizes.grouped_bytes;
    return out;
}

ControllerMemory controller_memory(const Action& action, const CallSignature& signature) {
    ControllerMemory all;
    for (const ControllerKind* controller : kControllers) {
        if (controller->memory != nullptr) {
            const ControllerMemory own = controller->memory(action, signature);
            all.scratch_bytes = std::max(all.scratch_bytes, own.scratch_bytes);
            all.tensor_bytes += own.tensor_bytes;
        }
    }
    return all;
}

bool draws(const Decision& decision, DType dtype, const ResidualLayout& residual) {
    const Action& action = decision.action;
    return draws(*action.codec, dtype) ||
           std::any_of(decision.segments.begin(), decision.segments.end(),
                       [&](const Segment& segment) {
                           return !segment.raw() && draws(segment.codec, dtype);
                       }) ||
           (action.intra_codec.has_value() && draws(*action.intra_codec, dtype)) ||
           (residual.staged && residual.type != ResidualType::kFloat32);
}

// Of the sums that ranks make of what others encoded too; who gets a message reads what it holds.
bool draws_alike(const Decision& decision, const CallSignature& signature) {
    const auto alike = [&](const CodecSpec& codec) {
        return codec.traits(signature.dtype).draws_alike;
    };
    const Action& action = decision.action;
    return !is_point_to_point(signature.op) &&
           (alike(*action.codec) ||
            std::any_of(
                decision.segments.begin(), decision.segments.end(),
                [&](const Segment& segment) { return !segment.raw() && alike(segment.codec); }) ||
            (action.intra_codec.has_value() && alike(*action.intra_codec)));
}

// Hash of what says where in the store a residual lies.
uint64_t residual_shape(const Plan& plan, const PlanShape& shape) {
    std::string text = codec_text(plan) + ' ' + algorithm_name(plan.algorithm);
    const auto put = [&](uint64_t value) { text += ' ' + std::to_string(value); };
    put(static_cast<uint64_t>(plan.residual.type));
    put(plan.residual.elems);
    put(plan.residual.bytes);
    put(static_cast<uint64_t>(shape.ranks));
    for (const Slice& slice : plan.layout.slices) {
        put(slice.pieces.size());
        for (const Piece& piece : slice.pieces) {
            put(piece.offset_elems);
            put(static_cast<uint64_t>(piece.count));
            put(static_cast<uint64_t>(piece.chunk_elems));
            text += piece.codec.to_string() + (piece.has_residual ? "" : "!");
        }
    }
    if (plan.layout.factored != nullptr) {
        for (const LowRankMatrix& matrix : plan.layout.factored->factors.matrices) {
            put(static_cast<uint64_t>(matrix.element));
            put(static_cast<uint64_t>(matrix.rows));
            put(static_cast<uint64_t>(matrix.cols));
        }
    }
    if (plan.algorithm == Algorithm::kHierarchical && shape.nodes != nullptr) {
        for (int rank = 0; rank < shape.ranks; ++rank) {
            put(static_cast<uint64_t>(shape.nodes->node_of(rank)));
        }
    }
    return stable_hash(text);
}

// No slice is cut smaller than this for want of scratch.
constexpr uint64_t kSmallestSlice = 64 << 10;

// An algorithm's way with a call, cut until it has room.
struct Fitted {
    Sized sized;
    ResidualLayout residual;
    ScratchLayout scratch;
    uint64_t slice_bytes = 0;  // of a message; 0: it is whole
};

Fitted fit(Algorithm algorithm,
           const AlgorithmRequest& request,
           uint64_t control_bytes,
           uint64_t slice_bytes) {
    const PlanShape& shape = request.shape;
    for (Fitted out;;) {
        out.sized = size_exchange(algorithm, request, slice_bytes);
        out.residual = residual_layout(request.action, out.sized);
        out.scratch = scratch_layout(out.sized, out.residual, shape.ranks);
        out.scratch.bytes = std::max(out.scratch.bytes, control_bytes);
        out.slice_bytes = slice_bytes;
        const uint64_t largest =
            slice_bytes != 0 ? slice_bytes : message_bytes(request.signature, shape.ranks);
        if (why_no_scratch(out.scratch.bytes, shape).empty() || largest < 2 * kSmallestSlice) {
            return out;
        }
        slice_bytes = largest / 2;  // takes less
    }
}

// The same where other codecs take turns, whose residuals lie as this one's: by slices in which all
// have room but those that never do.
Fitted fit_all(Algorithm algorithm,
               const AlgorithmRequest& request,
               uint64_t control_bytes,
               uint64_t slice_bytes) {
    Fitted out = fit(algorithm, request, control_bytes, slice_bytes);
    if (out.residual.bytes == 0) {
        return out;
    }
    const auto make_room = [&](const CodecSpec& codec) {
        Action action = request.action;
        std::vector<Segment> segments(request.segments.begin(), request.segments.end());
        action.codec = codec;
        for (Segment& segment : segments) {
            const bool own = !segment.raw() && segment.codec == *request.action.codec;
            segment.codec = own ? codec : segment.codec;
        }
        const AlgorithmRequest other{request.signature, request.shape, action, segments,
                                     request.matrices};
        if (!why_not(algorithm, other).empty()) {
            return;
        }
        const Fitted its = fit(algorithm, other, control_bytes, out.slice_bytes);
        if (its.slice_bytes != out.slice_bytes &&
            why_no_scratch(its.scratch.bytes, request.shape).empty()) {
            out = fit(algorithm, request, control_bytes, its.slice_bytes);
        }
    };
    for (const Key& key : action_keys()) {
        if (key.switches_codec) {
            key.of(request.action).for_each_codec(make_room);
        }
    }
    return out;
}

// Completes the plan with this algorithm, or says why not; tells how messages are cut.
std::string try_algorithm(Algorithm algorithm,
                          const Decision& decision,
                          const PlanShape& shape,
                          const Config& config,
                          uint64_t* slice_bytes,
                          Plan* plan) {
    const CallSignature& signature = plan->signature;
    const Action& action = decision.action;
    const AlgorithmRequest request{signature, shape, action, decision.segments, decision.matrices};
    if (std::string reason = why_not(algorithm, request); !reason.empty()) {
        return reason;
    }
    const ControllerMemory control = controller_memory(action, signature);
    auto [sized, residual, scratch, cut_bytes] =
        fit_all(algorithm, request, control.scratch_bytes, config.settings.slice_bytes);
    *slice_bytes = cut_bytes;
    if (std::string reason = why_larger(algorithm, request, sized.layout); !reason.empty()) {
        return reason;
    }
    if (std::string reason = why_no_scratch(scratch.bytes, shape); !reason.empty()) {
        plan->remedy = kMoreScratch;
        return reason;
    }
    const uint64_t needed =
        shape.committed_bytes + scratch.bytes + residual.bytes + control.tensor_bytes;
    if (exceeds(needed, config.settings)) {
        plan->remedy = kMoreMemory;
        return std::to_string(needed) + " bytes of residuals and scratch exceed " +
               "SLIMWIRE_MAX_MEMORY of " + std::to_string(config.settings.max_memory_bytes);
    }
    plan->compressed = true;
    plan->algorithm = algorithm;
    // Both ends of a message have this, also where only one keeps a residual.
    plan->uses_error_feedback =
        action.error_feedback != ErrorFeedback::kNone || sized.sizes.state_elems > 0;
    plan->needs_slot = plan->uses_error_feedback && action.needs_slot();
    plan->error_feedback = keeps_residuals(action, sized.sizes) || residual.state_bytes > 0
                               ? action.error_feedback
                               : ErrorFeedback::kNone;
    plan->controller_bytes = control.tensor_bytes;
    plan->layout = std::move(sized.layout);
    plan->pairs_calls = is_paired(plan->layout) || is_learned(plan->layout) ||
                        (plan->layout.factored != nullptr && is_point_to_point(plan->signature.op));
    // Replays are not counted.
    plan->capturable =
        !(plan->uses_error_feedback && action.counts_at_slot()) && !plan->pairs_calls;
    plan->scratch = scratch;
    plan->residual = residual;
    plan->lacks_feedback = lacks_feedback(decision, signature);
    plan->draws.any = draws(decision, signature.dtype, residual);
    plan->draws.alike = descriptor_of(algorithm).draws_alike || draws_alike(decision, signature);
    plan->draws.key.seed = config.settings.seed;
    plan->draws.key.tensor = static_cast<uint32_t>(hash_of(signature) >> 32);
    plan->residual.shape = residual.bytes > 0 ? residual_shape(*plan, shape) : 0;
    return {};
}

}  // namespace

Plan make_plan(const CallSignature& signature,
               const PlanShape& shape,
               const Config& config,
               const ParameterRanges* parameters) {
    Plan plan = native_plan(signature, shape, config.policy);
    const Rule* const asking = direction_asked(signature, shape, config.policy);
    // Each message of an exchange counts, whatever it has.
    const bool exchanged = asking != nullptr && asking->action.pair_order().calls > 0 &&
                           is_point_to_point(signature.op) && shape.go && shape.ranks > 1;
    if (plan.reason.empty() && asking != nullptr && asking->action.pair_order().chunks > 1 &&
        shape.ranks == 2) {
        plan.rule = asking->name;
        plan.reason =
            "between two stages alone nothing tells gradients from activations of the next chunk, "
            "and rule '" +
            asking->name + "' has chunks ('pairing')";
        plan.remedy = "a codec that answers go without, like int8, or topk with pair=none";
        return plan;
    }
    if (asking != nullptr && (exchanged || plan.reason.empty())) {
        plan.pairs = asking->action.pair_order();
        plan.pairs->rule = static_cast<uint32_t>(asking - config.policy.rules.data());
    }
    if (!plan.reason.empty()) {
        return plan;
    }
    if (signature.ordinal == 0) {
        plan.ordinals = ordinals_asked(signature, shape, config.policy);
    }
    const Decision decision = decide(signature, shape, config.policy, parameters);
    plan.rule = decision.rule;
    const Action& action = decision.action;
    if (!action.codec.has_value()) {
        plan.reason = decision.reason;
        plan.remedy = decision.remedy;
        plan.lacks_row = decision.lacks_row;
        return plan;
    }
    CostChoice choice;
    choice.algorithms = candidates({signature, shape, action, decision.segments});
    if (decision.segments.empty()) {
        choice = choose_by_costs(signature, shape, action, std::move(choice.algorithms));
    }
    plan.reason = std::move(choice.native);
    plan.remedy = plan.reason.empty() ? kOtherWay : kMeasureOrSay;
    for (const Algorithm algorithm : choice.algorithms) {
        uint64_t slice_bytes = 0;
        std::string reason = try_algorithm(algorithm, decision, shape, config, &slice_bytes, &plan);
        if (plan.compressed) {
            plan.remedy = nullptr;
            if (parameters != nullptr) {
                plan.parameters = std::make_shared<ParameterRanges>(*parameters);
            }
            plan.beside = decision.beside;
            plan.reason = decision.reason + (choice.reason.empty() ? "" : ", " + choice.reason);
            std::string against =
                add_features(action, slice_bytes, shape, config, parameters, &plan);
            if (!against.empty()) {
                Plan native;
                native.signature = signature;
                native.rule = plan.rule;
                native.reason = std::move(against);
                native.remedy = kOtherWay;
                return native;
            }
            return plan;
        }
        plan.reason += (plan.reason.empty() ? "" : "; ") + reason;
    }
    return plan;
}

namespace {

// Calls as rules may see them: with what is known of them later, where a rule asks.
std::vector<CallSignature> as_asked(const Policy& policy) {
    std::vector<CallSignature> calls(1);
    for (const Rule& rule : policy.rules) {
        for (const ParameterMatch::Indices& ordinals : rule.match.ordinals) {
            calls.emplace_back().ordinal = ordinals.first + 1;
        }
    }
    if (policy.wants_rows()) {
        calls.emplace_back().row = 256;  // shorter ones than most
    }
    const bool directed = std::any_of(
        policy.rules.begin(), policy.rules.end(),
        [](const Rule& rule) { return rule.match.directions != 0 || goes_by_answers(rule); });
    for (size_t i = 0, undirected = directed ? calls.size() : 0; i < undirected; ++i) {
        for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
            calls.push_back(calls[i]);
            calls.back().direction = direction;
        }
    }
    return calls;
}

}  // namespace

uint64_t largest_scratch(const PlanShape& shape, Config config) {
    constexpr uint64_t kSlice = 16 << 20;  // of messages that are sent whole where there is room
    if (config.settings.slice_bytes == 0) {
        config.settings.slice_bytes = kSlice;
    }
    for (Rule& rule : config.policy.rules) {
        rule.action.auto_bytes = false;  // what calls cost is not known yet
    }
    // Rules tell sizes apart. What an autoencoder and messages with a mask take grows with the
    // message, and the reserve is for those that a layer makes.
    constexpr uint64_t kSizes[] = {64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30};
    constexpr uint64_t kMostWhole = 256 << 20;
    uint64_t largest = 0;
    const auto add = [&](CallSignature signature, uint64_t bytes) {
        const uint64_t message = message_bytes(signature, shape.ranks);
        signature.count = signature.count * bytes / message;
        const Plan plan = make_plan(signature, shape, config);
        if (bytes > kMostWhole && (is_learned(plan.layout) || is_paired(plan.layout))) {
            return;
        }
        largest = std::max(largest, plan.scratch.bytes);
        for (const std::shared_ptr<const Plan>& variant : plan.variants) {
            largest = std::max(largest, variant->scratch.bytes);
        }
    };
    for (CallSignature signature : as_asked(config.policy)) {
        for (int op = 0; op < kOpCount; ++op) {
            signature.op = static_cast<Op>(op);
            signature.redop = reduces(signature.op) ? RedOp::kSum : RedOp::kNone;
            for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
                signature.dtype = dtype;
                for (const uint64_t bytes : kSizes) {
                    signature.count = bytes / dtype_bytes(dtype);
                    add(signature, bytes);
                }
            }
        }
    }
    return largest;
}

Plan without_residuals(Plan plan) {
    plan.error_feedback = ErrorFeedback::kNone;
    plan.residual = {};
    plan.parts.clear();
    plan.variants.clear();
    for (std::shared_ptr<const ControllerRule>& rule : plan.controlled_by) {
        rule = rule->without_variants();
    }
    std::erase(plan.controlled_by, nullptr);
    return plan;
}

}  // namespace slimwire
