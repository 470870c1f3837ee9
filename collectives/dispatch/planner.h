// Makes plans: asks the policy (plan/decision.h), tries the algorithms that may carry the call, and
// completes the plan with what else its rule says (adaptive/controller.h, feedback/call_hook.h).
#pragma once

#include "collectives/plan/plan.h"

namespace slimwire {

// Pure: no clock, no address, no local state. `parameters`: what signature.ranges_id stands for;
// null where that is 0.
Plan make_plan(const CallSignature& signature,
               const PlanShape& shape,
               const Config& config,
               const ParameterRanges* parameters = nullptr);

// The most scratch that plans of a communicator want, as far as that follows from the policy.
[[nodiscard]] uint64_t largest_scratch(const PlanShape& shape, Config config);

// The same plan for tensors that do not come back, whose residuals would be memory for nothing:
// without them, and without what goes with them.
Plan without_residuals(Plan plan);

}  // namespace slimwire
