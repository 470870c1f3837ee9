// All algorithms in one place: which one a call gets, what it costs, and the exchange that runs it.
// To add one: its file, its value of Algorithm (policy.h), a case in each function here.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/estimated_scatter.h"
#include "collectives/algorithms/gather.h"
#include "collectives/algorithms/hierarchical.h"
#include "collectives/algorithms/hierarchical_scatter.h"
#include "collectives/algorithms/low_rank_exchange.h"
#include "collectives/algorithms/summable.h"
#include "collectives/algorithms/two_shot.h"

namespace slimwire {

// The algorithms that a call may get, best first, when its rule says this: the one that it names,
// or what `auto` means for the operation and the communicator. Pure. `segments`, here and below:
// of the message; empty: all of it with the action's codec.
std::vector<Algorithm> candidates(const CallSignature& signature,
                                  const PlanShape& shape,
                                  const Action& action,
                                  const std::vector<Segment>& segments = {});

// Why an algorithm cannot carry the call; empty when it can.
std::string why_not(Algorithm algorithm,
                    const CallSignature& signature,
                    const PlanShape& shape,
                    const Action& action,
                    const std::vector<Segment>& segments = {});

// How the call's buffer is cut for the algorithm, which can carry it; not of kLowRank, see
// factored_layout().
Layout layout_of(Algorithm algorithm,
                 const CallSignature& signature,
                 const PlanShape& shape,
                 const Action& action,
                 uint64_t slice_bytes,
                 const std::vector<Segment>& segments = {});

ExchangeSizes sizes_of(Algorithm algorithm,
                       const Layout& layout,
                       const CallSignature& signature,
                       const PlanShape& shape);

// Bytes that this rank gives to the transport for one call of a compressed plan.
[[nodiscard]] uint64_t wire_bytes_of(const Plan& plan, const PlanShape& shape, int rank) noexcept;
// Whether this rank keeps a residual for calls of a plan with error feedback.
[[nodiscard]] bool keeps_residual(const Plan& plan, int rank) noexcept;

// Whether the plan's codec is applied to what a rank gives (Exchange::rehearse() does it), not to
// sums that only the exchange makes, nor to differences from an estimate.
[[nodiscard]] bool encodes_contributions(const Plan& plan) noexcept;

// Room for an exchange of any algorithm, so that a call allocates nothing.
using ExchangeRoom = std::variant<std::monostate,
                                  TwoShot,
                                  EstimatedTwoShot,
                                  Direct,
                                  EstimatedScatter,
                                  Hierarchical,
                                  HierarchicalScatter,
                                  Gather,
                                  EstimatedGather,
                                  Summable,
                                  LowRank,
                                  Autoencoder>;
// Makes the exchange of `context.plan` in `room`.
Exchange* make_exchange(const ExchangeContext& context, ExchangeRoom* room);

}  // namespace slimwire
