// Who the ranks of a communicator are, and the keys made of that. Used while a communicator is
// created (creation.cpp); nothing here is on the path of a call.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "collectives/agreement.h"
#include "collectives/runtime.h"
#include "collectives/underway.h"

namespace slimwire {

// A key as reports show it: 16 hex digits.
[[nodiscard]] std::string hex_key(uint64_t value);
// Another key for the same thing seen with `value`.
[[nodiscard]] uint64_t mix_key(uint64_t key, uint64_t value) noexcept;

// This process as a rank on `device`.
Member member_of(Runtime& runtime, int device);

// Fills the shape and the keys of `state` from its members; `parent_key` is 0 without a parent.
Status adopt_members(Runtime& runtime, CommState* state, uint64_t parent_key);

// A few bytes of every rank of a communicator, to all of them: `all` has room for those of each.
struct Gathering {
    ncclComm_t comm = nullptr;
    int device = 0, rank = 0;
    std::span<const std::byte> mine;
    std::span<std::byte> all;
};
// On internal streams, in one group, waited for under `watch`. All ranks of the communicators must
// call it.
Status all_gather(Runtime& runtime, const std::vector<Gathering>& gatherings, Watch* watch);

// Members of communicators made by a split: all-gathered over the new communicators themselves.
Status gather_members(Runtime& runtime, const std::vector<CommState*>& states, Watch* watch);

}  // namespace slimwire
