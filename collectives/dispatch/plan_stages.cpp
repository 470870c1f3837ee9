#include "collectives/dispatch/plan_stages.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "collectives/feedback/averaging.h"

namespace slimwire {
namespace {

bool same_chunks(const Chunks& a, const Chunks& b) {
    return a.count == b.count && a.chunk_elems == b.chunk_elems;
}

// Whether residuals lie alike with both plans, and mean the same.
bool keep_alike(const Plan& a, const Plan& b) {
    if (a.error_feedback != b.error_feedback || a.algorithm != b.algorithm ||
        a.residual_bytes != b.residual_bytes || a.residual_type != b.residual_type ||
        a.uses_error_feedback != b.uses_error_feedback || a.tensor != b.tensor ||
        a.shared_elems != b.shared_elems || a.layout.slices.size() != b.layout.slices.size()) {
        return false;
    }
    for (size_t i = 0; i < a.layout.slices.size(); ++i) {
        const auto& [of_a, of_b] = std::tie(a.layout.slices[i].pieces, b.layout.slices[i].pieces);
        if (!std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                        [](const Piece& one, const Piece& other) {
                            return same_chunks(one, other) &&
                                   one.offset_elems == other.offset_elems &&
                                   one.has_residual == other.has_residual;
                        })) {
            return false;
        }
    }
    return true;
}

// The plan that the call would have if change(Action*) had been made to its rule.
template <class Change>
Plan plan_after(const Plan& plan,
                const PlanShape& shape,
                const Config& config,
                const ParameterRanges* parameters,
                const Change& change) {
    Config changed = config;
    for (Rule& rule : changed.policy.rules) {
        if (rule.name == plan.rule) {
            change(&rule.action);
            rule.action.average_every = 0;  // the plan's own do it
        }
    }
    return make_plan(plan.signature, shape, changed, parameters);
}

// The plan that the call would have if the rule named the stage's codec.
std::shared_ptr<Plan> plan_of_stage(const RampStage& stage,
                                    const Plan& plan,
                                    const PlanShape& shape,
                                    const Config& config,
                                    const ParameterRanges* parameters) {
    auto made = std::make_shared<Plan>();
    made->signature = plan.signature;
    made->rule = plan.rule;
    const std::string until = " until call " + std::to_string(stage.until);
    if (!stage.codec.has_value()) {
        made->reason = "native by its ramp" + until;
        return made;
    }
    Plan as_asked = plan_after(plan, shape, config, parameters, [&](Action* action) {
        action->least_state_rank = action->low_rank() ? action->state_rank() : 0;
        action->codec = stage.codec;
        action->ramp.clear();
    });
    if (as_asked.compressed && keep_alike(as_asked, plan)) {
        as_asked.reason += ", its ramp" + until;
        *made = std::move(as_asked);
    } else {
        made->reason = "native" + until + ", because " + stage.codec->to_string() +
                       " of its ramp " +
                       (as_asked.compressed ? "keeps residuals otherwise than its codec"
                                            : "would not do: " + as_asked.reason);
    }
    return made;
}

// Where every rank's own residuals lie by the elements of its buffer.
void add_preview(const StepAheadRule& rule, Plan* plan) {
    if (plan->residual_bytes == 0) {
        return;
    }
    if (plan->algorithm != Algorithm::kHierarchical && plan->tensor == TensorBy::kStep) {
        plan->preview = rule;
        plan->reason += plan->signature.op == Op::kReduceScatter ? ", gathers previewed"
                                                                 : ", previewed where it is asked";
    } else {
        plan->reason += std::string(", no preview with ") + algorithm_name(plan->algorithm);
    }
}

// Completes a plan whose rule has a controller; what cannot be is why the call is native.
std::string add_low(const AccordionRule& rule,
                    const PlanShape& shape,
                    const Config& config,
                    const ParameterRanges* parameters,
                    Plan* plan) {
    if (plan->tensor != TensorBy::kStep) {
        return "accordion without places in the step";
    }
    Plan low = plan_after(*plan, shape, config, parameters, [&](Action* action) {
        action->codec = rule.low;
        action->accordion->window = 0;
    });
    const std::string text = "accordion's low " + rule.low.to_string();
    if (!low.compressed) {
        return text + " would not do: " + low.reason;
    }
    if (!keep_alike(low, *plan)) {
        return text + " keeps residuals otherwise than its codec";
    }
    low.reason += ", low compression of its accordion";
    plan->reason += ", high compression of its accordion";
    plan->accordion = rule;
    plan->low = std::make_shared<Plan>(std::move(low));
    return {};
}

}  // namespace

std::string add_stages(const Action& action,
                       const PlanShape& shape,
                       const Config& config,
                       const ParameterRanges* parameters,
                       Plan* plan) {
    std::string against;
    if (action.preview.has_value()) {
        add_preview(*action.preview, plan);
    }
    if (action.average_every > 0) {
        against = add_averaging(action, shape, config, plan);
    }
    if (against.empty() && action.accordion.has_value() && action.accordion->window > 0) {
        against = add_low(*action.accordion, shape, config, parameters, plan);
    }
    if (!against.empty()) {
        return against;
    }
    for (const RampStage& stage : action.ramp) {
        plan->ramp.push_back({stage.until, plan_of_stage(stage, *plan, shape, config, parameters)});
    }
    return {};
}

}  // namespace slimwire
