// Who the ranks of a communicator are, and the keys made of that. Used while a communicator is
// created (creation.cpp); nothing here is on the path of a call.
#pragma once

#include <string>
#include <vector>

#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/process.h"

namespace slimwire {

// A key as reports show it: 16 hex digits.
[[nodiscard]] std::string hex_key(uint64_t value);
// Another key for the same thing seen with `value`.
[[nodiscard]] uint64_t mix_key(uint64_t key, uint64_t value) noexcept;

// This process as the rank of `state`, whose device is known; `parent_key` is 0 without a parent.
Member member_of(Runtime& runtime, const Communicator& state, uint64_t parent_key);

// What calls take by what was measured of the communicator's shape, whose nodes are known. `how`:
// CommCosts::how().
void adopt_costs(const std::shared_ptr<const std::vector<Calibration>>& calibrations,
                 const char* how,
                 Communicator* state);
// Fills the shape and the keys of `state` from its members and what is equal on the ranks of one
// creation alone, or 0; `shape.costs` is the parent's until then.
Status adopt_members(Runtime& runtime, uint64_t token, Communicator* state);
// PlanShape has the communicator's name where all ranks gave the same. Where they differ, a warning
// says so, and there is none.
void adopt_name(Communicator* state);

}  // namespace slimwire
