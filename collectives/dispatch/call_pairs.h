// Which masks a call with pair=mask keeps and answers.
#pragma once

#include <optional>
#include <span>

#include "collectives/algorithms/held_masks.h"
#include "collectives/dispatch/executor.h"

namespace slimwire {

// Whether calls of the plan go by what is kept of those that they answer.
[[nodiscard]] bool goes_by_pairs(const Plan& plan) noexcept;

// Of a message `own`, which is made here; of a collective the session's, two a rank: what goes to
// it and what comes from it. Allocates masks behind the calls so far; on the current device.
Result<std::span<PairUse>> pair_up(const BeforeCall& before,
                                   const QueuedCall& item,
                                   std::optional<PairUse>* own);

}  // namespace slimwire
