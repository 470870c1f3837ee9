// Who the ranks of a communicator are, and the keys made of that. Used while a communicator is
// created (creation.cpp); nothing here is on the path of a call.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/process.h"

namespace slimwire {

// A key as reports show it: 16 hex digits.
[[nodiscard]] std::string hex_key(uint64_t value);
// Another key for the same thing seen with `value`.
[[nodiscard]] uint64_t mix_key(uint64_t key, uint64_t value) noexcept;

// This process as the rank of `state`, whose device is known.
Member member_of(Runtime& runtime, const Communicator& state);

// Fills the shape and the keys of `state` from its members; `parent_key` is 0 without a parent.
Status adopt_members(Runtime& runtime, Communicator* state, uint64_t parent_key);

// Members of communicators made by a split: all-gathered over the new communicators themselves.
Status gather_members(Runtime& runtime,
                      const std::vector<Communicator*>& states,
                      AbortWatch* watch);
// Names of communicators: PlanShape has them where all ranks gave the same, told over the private
// communicators. Where they differ, a warning says so, and there is none.
Status agree_names(Runtime& runtime, const std::vector<Communicator*>& states, AbortWatch* watch);

}  // namespace slimwire
