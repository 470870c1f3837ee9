// What becomes of a call whose tensor keeps something for the first time, or has no memory for it.
#pragma once

#include "collectives/dispatch/executor.h"
#include "collectives/feedback/residual_store.h"

namespace slimwire {

// Counts and says what is unusual about the residual `own` that the call got by the plan `keeper`.
// A local residual that has no room is null, which is warned about once; state that ranks keep
// alike is an error then. On the current device.
Status take_unusual(Runtime& runtime,
                    const BeforeCall& before,
                    const QueuedCall& item,
                    const Plan& keeper,
                    const Residual& own);

}  // namespace slimwire
