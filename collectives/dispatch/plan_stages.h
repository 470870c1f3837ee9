// What else belongs to a compressed plan whose rule says more than a codec: the plans that tensors
// take by turns (accordion, ramp), averaging and previews. Part of make_plan().
#pragma once

#include <string>

#include "collectives/plan/plan.h"

namespace slimwire {

// Completes the plan, which was made by `action` for the rule of its name; what cannot be is why
// the call is native, and the plan is then to be thrown away.
std::string add_stages(const Action& action,
                       const PlanShape& shape,
                       const Config& config,
                       const ParameterRanges* parameters,
                       Plan* plan);

}  // namespace slimwire
