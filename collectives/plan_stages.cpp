#include "collectives/plan_stages.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "collectives/averaging.h"
#include "collectives/error_budget.h"
#include "collectives/factor_probe.h"

namespace slimwire {
namespace {

// What aligning parts of the scratch may take.
constexpr uint64_t kRawRoom = 1024;

bool same_chunks(const Chunks& a, const Chunks& b) {
    return a.count == b.count && a.chunk_elems == b.chunk_elems;
}

// Whether residuals lie alike with both plans, and mean the same.
bool keep_alike(const Plan& a, const Plan& b) {
    if (a.error_feedback != b.error_feedback || a.algorithm != b.algorithm ||
        a.residual_bytes != b.residual_bytes || a.residual_type != b.residual_type ||
        a.feeds_back != b.feeds_back || a.tensor != b.tensor || a.shared_elems != b.shared_elems ||
        a.layout.slices.size() != b.layout.slices.size()) {
        return false;
    }
    for (size_t i = 0; i < a.layout.slices.size(); ++i) {
        const auto& [of_a, of_b] = std::tie(a.layout.slices[i].pieces, b.layout.slices[i].pieces);
        if (!std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                        [](const Piece& one, const Piece& other) {
                            return same_chunks(one, other) &&
                                   one.offset_elems == other.offset_elems &&
                                   one.feeds == other.feeds;
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
                const Carried* carried,
                const Change& change) {
    Config changed = config;
    for (Rule& rule : changed.policy.rules) {
        if (rule.name == plan.rule) {
            change(&rule.action);
            rule.action.average_every = 0;  // the plan's own do it
        }
    }
    return make_plan(plan.facts, shape, changed, carried);
}

// The plan that the call would have if the rule named the stage's codec.
std::shared_ptr<Plan> plan_of_stage(const RampStage& stage,
                                    const Plan& plan,
                                    const PlanShape& shape,
                                    const Config& config,
                                    const Carried* carried) {
    auto made = std::make_shared<Plan>();
    made->facts = plan.facts;
    made->rule = plan.rule;
    const std::string until = " until call " + std::to_string(stage.until);
    if (!stage.codec.has_value()) {
        made->reason = "native by its ramp" + until;
        return made;
    }
    Plan as_asked = plan_after(plan, shape, config, carried, [&](Action* action) {
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
void add_preview(const PreviewRule& rule, Plan* plan) {
    if (plan->residual_bytes == 0) {
        return;
    }
    if (plan->algorithm != Algorithm::kHierarchical && plan->tensor == TensorBy::kStep) {
        plan->preview = rule;
        plan->reason += plan->facts.op == Op::kReduceScatter ? ", gathers previewed"
                                                             : ", previewed where it is asked";
    } else {
        plan->reason += std::string(", no preview with ") + algorithm_name(plan->algorithm);
    }
}

// Completes a plan whose rule has a controller; what cannot be is why the call is native.
std::string add_low(const AccordionRule& rule,
                    const PlanShape& shape,
                    const Config& config,
                    const Carried* carried,
                    Plan* plan) {
    if (plan->tensor != TensorBy::kStep) {
        return "accordion without places in the step";
    }
    Plan low = plan_after(*plan, shape, config, carried, [&](Action* action) {
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

// Completes a plan whose rule bounds the error; what cannot be is why the call is native.
std::string add_ladder(const ErrorBudgetRule& rule,
                       const PlanShape& shape,
                       const Config& config,
                       const Carried* carried,
                       Plan* plan) {
    if (plan->tensor != TensorBy::kStep) {
        return "max_error without places in the step";
    }
    if (plan->facts.redop != RedOp::kSum && plan->facts.redop != RedOp::kAvg) {
        return "max_error, whose probes are sums or means";
    }
    const bool low_rank = plan->layout.factored != nullptr;
    if (!low_rank &&
        (plan->layout.slices.empty() || plan->layout.slices.front().pieces.size() != 1)) {
        return "max_error, and codecs of the call's parts differ";
    }
    for (const CodecSpec& codec : rule.ladder) {
        if (!codec.accepts(plan->facts.dtype)) {
            return "max_error's " + codec.to_string() + " does not take this type";
        }
    }
    for (size_t i = 0; i + 1 < rule.ladder.size(); ++i) {
        Plan rung = plan_after(*plan, shape, config, carried, [&](Action* action) {
            action->codec = rule.ladder[i];
            action->budget->every = 0;
        });
        const std::string text = "max_error's " + rule.ladder[i].to_string();
        if (!rung.compressed) {
            return text + " would not do: " + rung.reason;
        }
        if (!keep_alike(rung, *plan)) {
            return text + " keeps residuals otherwise than its codec";
        }
        rung.reason += ", by max_error";
        plan->ladder.push_back(std::make_shared<Plan>(std::move(rung)));
    }
    plan->budget = rule;
    auto probe = std::make_shared<Plan>();
    probe->facts = plan->facts;
    probe->rule = plan->rule;
    probe->reason = "probe of max_error";
    if (low_rank) {
        for (const std::shared_ptr<Plan>& rung : plan->ladder) {
            probe->factored.push_back(rung->layout.factored);
        }
        probe->factored.push_back(plan->layout.factored);
    }
    probe->scratch_bytes = low_rank
                               ? factor_probe_bytes(probe->factored)
                               : probe_bytes(rule.ladder, plan->facts.dtype, plan->facts.count);
    probe->random = plan->random;
    probe->budget = rule;
    if (rule.beats_random) {
        // Any of the matrices may go raw beside the factors of the others.
        const uint64_t raw = plan->facts.count * dtype_bytes(plan->facts.dtype) + kRawRoom;
        plan->scratch_bytes += raw;
        for (const std::shared_ptr<Plan>& rung : plan->ladder) {
            rung->scratch_bytes += raw;
        }
        const uint64_t needed = shape.committed_bytes + plan->scratch_bytes + plan->tensor_bytes();
        if (exceeds(needed, config.settings)) {
            return std::to_string(needed) +
                   " bytes of residuals and scratch, matrices that max_error refuses included, "
                   "exceed SLIMWIRE_MAX_MEMORY of " +
                   std::to_string(config.settings.max_memory_bytes);
        }
    }
    plan->probe = std::move(probe);
    plan->reason += ", by max_error";
    return {};
}

}  // namespace

std::string add_stages(const Action& action,
                       const PlanShape& shape,
                       const Config& config,
                       const Carried* carried,
                       Plan* plan) {
    std::string against;
    if (action.preview.has_value()) {
        add_preview(*action.preview, plan);
    }
    if (action.average_every > 0) {
        against = add_averaging(action, shape, config, plan);
    }
    if (against.empty() && action.accordion.has_value() && action.accordion->window > 0) {
        against = add_low(*action.accordion, shape, config, carried, plan);
    }
    if (against.empty() && action.budget.has_value() && action.budget->every > 0) {
        against = add_ladder(*action.budget, shape, config, carried, plan);
    }
    if (!against.empty()) {
        return against;
    }
    for (const RampStage& stage : action.ramp) {
        plan->ramp.push_back({stage.until, plan_of_stage(stage, *plan, shape, config, carried)});
    }
    return {};
}

}  // namespace slimwire
