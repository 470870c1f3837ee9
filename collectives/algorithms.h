// All algorithms in one place: which one a call gets, what it costs, and the exchange that runs it.
// To add one: its file, its value of Algorithm (policy.h), a case in each function here.
#pragma once

#include <string>
#include <variant>

#include "collectives/direct.h"
#include "collectives/two_shot.h"

namespace slimwire {

// The algorithm for a call whose rule names `wanted` (or kAuto), with this codec. kNative with a
// reason when that algorithm has no form of the operation or the codec cannot serve it. Pure.
Algorithm choose_algorithm(const CallFacts& facts,
                           const PlanShape& shape,
                           Algorithm wanted,
                           const CodecSpec& codec,
                           std::string* reason);

// How the call's buffer is cut for the algorithm.
Layout layout_of(Algorithm algorithm,
                 const CallFacts& facts,
                 const PlanShape& shape,
                 const CodecSpec& codec,
                 uint64_t slice_bytes);

ExchangeSizes sizes_of(Algorithm algorithm,
                       const Layout& layout,
                       const CallFacts& facts,
                       const PlanShape& shape);

// Bytes that this rank gives to the transport for one call of a compressed plan.
[[nodiscard]] uint64_t wire_bytes_of(const Plan& plan, int ranks, int rank) noexcept;
// Whether this rank keeps a residual for calls of a plan with error feedback.
[[nodiscard]] bool keeps_residual(const Plan& plan, int rank) noexcept;

// Room for an exchange of any algorithm, so that a call allocates nothing.
using ExchangeRoom = std::variant<std::monostate, TwoShot, Direct>;
// Makes the exchange of `context.plan` in `room`.
Exchange* make_exchange(const ExchangeContext& context, ExchangeRoom* room);

}  // namespace slimwire
