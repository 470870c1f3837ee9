// How the creations of a thread come to an agreement with the other ranks, in three steps; between
// them creation.cpp, which calls these, sends all hellos before it waits for any answer. Every wait
// ends when `watch` says so.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator/bootstrap_gather.h"
#include "collectives/communicator/creation.h"

namespace slimwire {

// Why this process compresses nothing on any communicator of `nccl`; empty when it may.
[[nodiscard]] std::string why_not_here(const Runtime& runtime, const RealNccl& nccl);

// The old ranks of communicators that grew: the one that made the id gives it to the others, over
// the communicator that grew, because they meet the new ranks at its address.
struct IdSharing {
    std::vector<ncclUniqueId> mine;
    std::vector<std::vector<ncclUniqueId>> all;
    std::unique_ptr<AllGathering> gathering;
    Status started;
    bool finished = false;
};
// Begins that for those of `grown` (all kGrown) which did not. The exchange is a call on the
// communicator that grew, so it must stand in the same place among the program's calls on every
// rank: before all that come after ncclCommGrow. A communicator that is busy until slimwire's part
// is done has no such calls; for any other this is called inside ncclCommGrow.
void begin_sharing(Runtime& runtime, const std::vector<Creation*>& grown);
// Begins what is left, and waits for the ids.
Status share_ids(Runtime& runtime, std::vector<Creation>& creations, AbortWatch* watch);
// Who this rank is, and its hello where one is due.
Status send_hello(Runtime& runtime, Creation* creation, AbortWatch* watch);
// The answer to the hello. An error when the ranks agreed on one.
Status hear(Runtime& runtime, Creation* creation, AbortWatch* watch);

// How the ranks of a split know each other without telling (recognition.cpp).
// Ranks of which each knows which of their parent's they are need not tell each other: they are all
// of these, or those that a shrink leaves, or the parent's server told them. Each splits the
// private communicator off by a hash of what all would tell, so that it has all ranks where none
// would tell anything else. Then they meet on it, for one may not have got it in time. Takes those
// communicators out of `strangers`: they have members and a private communicator, or are native
// where a rank did not come. Nothing here uses the device, or waits for its work.
Status recognize(Runtime& runtime, std::vector<Creation*>* strangers, AbortWatch* watch);

}  // namespace slimwire
