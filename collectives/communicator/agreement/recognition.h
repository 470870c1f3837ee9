// How the ranks of a split know each other without telling. Used by creation.cpp.
#pragma once

#include <vector>

#include "collectives/communicator/creation.h"

namespace slimwire {

// Ranks of which each knows which of their parent's they are need not tell each other: they are all
// of these, or those that a shrink leaves, or the parent's server told them. Each splits the
// private communicator off by a hash of what all would tell, so that it has all ranks where none
// would tell anything else. Then they meet on it, for one may not have got it in time. Takes those
// communicators out of `strangers`: they have members and a private communicator, or are native
// where a rank did not come. Nothing here uses the device, or waits for its work.
Status recognize(Runtime& runtime, std::vector<Creation*>* strangers, AbortWatch* watch);

}  // namespace slimwire
