// Where a rank of this process sits, as it tells the others (topology/machine/comm_links.h): of the
// machine, found once a process and only when a communicator that may compress is made.
//
// NCCL_TOPO_FILE, which NCCL takes for the machine, is taken here, too; then this machine's own
// sources. On the emulator nothing is found but by such a file, whose GPUs are then the devices.
#pragma once

#include "collectives/communicator/process.h"
#include "topology/machine/comm_links.h"

namespace slimwire {

// Of `device` on the node `host_id`; what is not known is 0 or -1. Thread-safe. What could not be
// read is a line of log, once.
[[nodiscard]] RankPlace rank_place_of(Runtime& runtime, int device, uint64_t host_id);

}  // namespace slimwire
