// Which masks a call with pair=mask keeps and answers.
#pragma once

#include <optional>
#include <span>

#include "collectives/algorithms/held_masks.h"
#include "collectives/dispatch/executor.h"
#include "collectives/dispatch/gather_state.h"
#include "collectives/identity/message_pairing.h"

namespace slimwire {

// Notes of a counted call, whose plan pairs calls and is chosen, what it goes by.
void note_pair(QueuedCall* item);

// Of a message `own`, which is made here; of a collective the session's, two a rank: what goes to
// it and what comes from it; by an autoencoder two. Allocates masks behind the calls so far; on the
// current device.
Result<std::span<PairUse>> pair_up(const BeforeCall& before,
                                   const QueuedCall& item,
                                   std::optional<PairUse>* own);

// Of messages to and from the rank, or of collectives (Session::kCollectives); begins with what was
// loaded.
MessagePairing& pairing_of(Session* state, int peer);
// The records of messages and their autoencoders.
void add_pairs(const Session& state, StateIndex* index, std::vector<StateSource>* sources);

}  // namespace slimwire
