#include "collectives/dispatch/planner.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "codecs/residual/load_store.h"
#include "collectives/adaptive/controller.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/plan/comm_costs.h"
#include "collectives/plan/decision.h"

namespace slimwire {
namespace {

// The plan that the call would have if change(Action*) had been made to its rule.
Plan plan_after(const Plan& plan,
                const PlanShape& shape,
                const Config& config,
                const ParameterRanges* parameters,
                const std::function<void(Action*)>& change) {
    Config changed = config;
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
    return make_plan(plan.signature, shape, changed, parameters);
}

// Completes the plan, which was made by `action` for the rule of its name, with what that says
// beside a codec; what cannot be is why the call is native, and the plan is then to be thrown away.
std::string add_features(const Action& action,
                         const PlanShape& shape,
                         const Config& config,
                         const ParameterRanges* parameters,
                         Plan* plan) {
    const PlanRequest request{action, shape, config, make_plan,
                              [&](const std::function<void(Action*)>& change) {
                                  return plan_after(*plan, shape, config, parameters, change);
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

// Empty when the call can be compressed on this communicator at all, else the reason.
std::string why_native(const CallSignature& signature, const PlanShape& shape) {
    if (shape.ranks == 1) {
        return "one rank: nothing crosses a wire";
    }
    if (!shape.go) {
        return shape.native_reason;
    }
    if (reduces(signature.op) && signature.redop != RedOp::kSum && signature.redop != RedOp::kAvg &&
        signature.redop != RedOp::kPreMulSum) {
        return std::string(redop_name(signature.redop)) + " is not a sum";
    }
    if (signature.count <= 1) {
        return "at most one element";
    }
    return {};
}

bool draws(const CodecSpec& codec, DType dtype) {
    const CodecTraits traits = codec.traits(dtype);
    return codec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic) || traits.linear ||
           traits.low_rank || traits.by_step;
}

// Completes the plan with this algorithm, or says why not.
std::string try_algorithm(Algorithm algorithm,
                          const Decision& decision,
                          const PlanShape& shape,
                          const Config& config,
                          Plan* plan) {
    const CallSignature& signature = plan->signature;
    const Action& action = decision.action;
    const AlgorithmRequest request{signature, shape, action, decision.segments, decision.matrices};
    if (std::string reason = why_not(algorithm, request); !reason.empty()) {
        return reason;
    }
    const bool estimates = action.error_feedback == ErrorFeedback::kEf21;
    const bool low_rank = algorithm == Algorithm::kLowRank;
    const AlgorithmDescriptor& descriptor = descriptor_of(algorithm);
    Layout layout = descriptor.layout(request, config.settings.slice_bytes);
    if (signature.count > 0) {
        const uint64_t block_bytes = signature.count * dtype_bytes(signature.dtype);
        reserve_workspace(static_cast<int64_t>(message_bytes(signature, shape.ranks) / block_bytes),
                          shape.ranks, &layout);
    }
    ExchangeSizes sizes = descriptor.sizes(layout, signature, shape);
    if (estimates) {
        plan->shared_estimate = sizes.shared_begin;
        sizes.residual_elems = sizes.estimate_elems;
    }
    // A receiver decides as its sender does.
    CallSignature sender = signature;
    sender.op = signature.op == Op::kRecv ? Op::kSend : signature.op;
    const uint64_t native = native_wire_bytes(sender, shape.ranks);
    if (sizes.wire_bytes >= native) {
        return std::string(algorithm_name(algorithm)) + " would send " +
               std::to_string(sizes.wire_bytes) + " bytes, native " + std::to_string(native);
    }
    // Pairwise exchanges between nodes of several ranks can send more over the slow link than
    // NCCL's ring, which leaves a node once.
    if (action.algorithm == Algorithm::kAuto && shape.scope == Scope::kInterNode &&
        shape.max_ranks_per_node > 1 && sizes.node_wire_bytes >= native) {
        return (algorithm == Algorithm::kHierarchical ? "" : "flat ") +
               std::string(algorithm_name(algorithm)) + " would send " +
               std::to_string(sizes.node_wire_bytes) + " bytes out of a node, a native ring " +
               std::to_string(native);
    }
    const ResidualType type = action.residual_type();
    const bool apart =
        action.error_feedback != ErrorFeedback::kNone && !estimates && sizes.residual_elems > 0 &&
        (action.error_feedback != ErrorFeedback::kEf14 || type != ResidualType::kFloat32);
    const uint64_t elems = stored_elems(type, sizes.residual_elems, sizes.residual_runs);
    const uint64_t state_bytes = (sizes.state_elems * sizeof(float) + 255) / 256 * 256;
    const uint64_t residual_bytes =
        state_bytes + (action.error_feedback == ErrorFeedback::kNone || sizes.residual_elems == 0
                           ? 0
                           : stored_residual_bytes(type, elems));
    const uint64_t threshold_offset = (residual_bytes + 15) / 16 * 16;
    const uint64_t kept_bytes =
        estimates || layout.threshold_bytes == 0
            ? residual_bytes
            : threshold_offset +
                  sizes.residual_runs * static_cast<uint64_t>(layout.threshold_bytes);
    const uint64_t staging_offset = (sizes.scratch_bytes + 255) / 256 * 256;
    const uint64_t window_bytes = estimates || apart ? sizes.largest_run * sizeof(float) : 0;
    const uint64_t window_end =
        std::max((staging_offset + window_bytes + 15) / 16 * 16, kMomentBytes);
    ControllerMemory control;
    for (const ControllerKind* controller : kControllers) {
        if (controller->memory != nullptr) {
            const ControllerMemory own = controller->memory(action, signature);
            control.scratch_bytes = std::max(control.scratch_bytes, own.scratch_bytes);
            control.tensor_bytes += own.tensor_bytes;
        }
    }
    const uint64_t exchange_bytes =
        estimates || low_rank ? window_end + static_cast<uint64_t>(shape.ranks) * sizeof(uint32_t)
        : apart               ? staging_offset + window_bytes
                              : sizes.scratch_bytes;
    const uint64_t scratch_bytes = std::max(exchange_bytes, control.scratch_bytes);
    const uint64_t needed =
        shape.committed_bytes + scratch_bytes + kept_bytes + control.tensor_bytes;
    if (exceeds(needed, config.settings)) {
        return std::to_string(needed) + " bytes of residuals and scratch exceed " +
               "SLIMWIRE_MAX_MEMORY of " + std::to_string(config.settings.max_memory_bytes);
    }
    plan->compressed = true;
    plan->algorithm = algorithm;
    // Both ends of a message have this, also where only one keeps a residual.
    plan->uses_error_feedback =
        action.error_feedback != ErrorFeedback::kNone || sizes.state_elems > 0;
    plan->tensor = plan->uses_error_feedback ? action.tensor : TensorBy::kAddress;
    // The steps of a graph are not seen.
    plan->capturable = plan->tensor != TensorBy::kStep;
    plan->error_feedback = residual_bytes == 0 ? ErrorFeedback::kNone : action.error_feedback;
    plan->scratch_bytes = scratch_bytes;
    plan->residual_bytes = kept_bytes;
    plan->controller_bytes = control.tensor_bytes;
    plan->threshold_offset = kept_bytes > residual_bytes ? threshold_offset : 0;
    plan->adapts_threshold = kept_bytes > residual_bytes;
    plan->staged_residual = apart;
    plan->staging_offset = staging_offset;
    plan->marks_offset = window_end;
    plan->residual_type = type;
    plan->residual_elems = elems;
    plan->state_bytes = state_bytes;
    plan->shared_elems = low_rank ? sizes.state_elems : estimates ? elems : 0;
    plan->layout = std::move(layout);
    const auto segment_draws = [&](const Segment& segment) {
        return !segment.raw() && draws(segment.codec, signature.dtype);
    };
    plan->draws = draws(*action.codec, signature.dtype) ||
                  std::any_of(decision.segments.begin(), decision.segments.end(), segment_draws) ||
                  (action.intra_codec.has_value() && draws(*action.intra_codec, signature.dtype)) ||
                  (apart && type != ResidualType::kFloat32);
    plan->random.seed = config.settings.seed;
    plan->random.tensor = static_cast<uint32_t>(hash_of(signature) >> 32);
    return {};
}

}  // namespace

Plan make_plan(const CallSignature& signature,
               const PlanShape& shape,
               const Config& config,
               const ParameterRanges* parameters) {
    Plan plan;
    plan.signature = signature;
    plan.reason = why_native(signature, shape);
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
        return plan;
    }
    CostChoice choice;
    choice.algorithms = candidates({signature, shape, action, decision.segments});
    if (decision.segments.empty()) {
        choice = choose_by_costs(signature, shape, action, std::move(choice.algorithms));
    }
    plan.reason = std::move(choice.native);
    for (const Algorithm algorithm : choice.algorithms) {
        std::string reason = try_algorithm(algorithm, decision, shape, config, &plan);
        if (plan.compressed) {
            plan.reason = decision.reason + (choice.reason.empty() ? "" : ", " + choice.reason);
            std::string against = add_features(action, shape, config, parameters, &plan);
            if (!against.empty()) {
                Plan native;
                native.signature = signature;
                native.rule = plan.rule;
                native.reason = std::move(against);
                return native;
            }
            return plan;
        }
        plan.reason += (plan.reason.empty() ? "" : "; ") + reason;
    }
    return plan;
}

}  // namespace slimwire
