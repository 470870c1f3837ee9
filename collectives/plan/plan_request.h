// From what a plan is made, for the features that add to it: adaptive/ and feedback/ know a codec's
// plan only, and dispatch/planner.h, which makes it, knows none of them by name.
#pragma once

#include <functional>
#include <string>

#include "collectives/plan/plan.h"

namespace slimwire {

// make_plan() of dispatch/planner.h.
using MakePlan = Plan (*)(const CallSignature& signature,
                          const PlanShape& shape,
                          const Config& config,
                          const ParameterRanges* parameters);

struct PlanRequest {
    const Action& action;  // of the call
    const PlanShape& shape;
    const Config& config;
    MakePlan make_plan;
    // The plan that the call would have after a change of its rule.
    std::function<Plan(const std::function<void(Action*)>& change)> after;
};

// What completes a compressed plan whose rule asks for it, and leaves others alone. What cannot be
// is why the call is native; the plan is then thrown away. Pure, as make_plan().
using AddToPlan = std::string (*)(const PlanRequest& request, Plan* plan);

}  // namespace slimwire
