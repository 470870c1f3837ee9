// What the tensor of a call keeps on this rank, and what becomes of the call where there is no
// memory for it.
#pragma once

#include "collectives/dispatch/executor.h"
#include "collectives/feedback/residual_store.h"

namespace slimwire {

// By the plan `keeper`, which is the call's own or that of the call whose hook it is. A local
// residual that has no room is null, which is counted and warned about once; state that ranks keep
// alike is an error then. On the current device.
Result<Residual> residual_of(Runtime& runtime,
                             const BeforeCall& before,
                             const QueuedCall& item,
                             const Plan& keeper);

}  // namespace slimwire
