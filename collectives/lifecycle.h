// Communicators coming and going: what surrounds NCCL's own creation and destruction calls. Called
// by plugin/preload after re-entry was ruled out. Creation inside a group is completed by the
// outermost GroupEnd; all hellos of a thread go out before it waits for any answer.
#pragma once

#include <nccl.h>

#include "collectives/runtime.h"

namespace slimwire {

// After the real ncclGetUniqueId succeeded: starts the agreement server and writes its address into
// the id's tail. Failures are logged and leave the id alone (every rank then goes native).
void unique_id_made(Runtime& runtime, ncclUniqueId* id) noexcept;

// After a real creation call of one rank returned `result`; outside a group it completes at once.
// Returns the result for the program: an error when the ranks agreed on one, and then *comm is
// null.
ncclResult_t rank_created(Runtime& runtime,
                          ncclResult_t result,
                          ncclComm_t* comm,
                          int ranks,
                          int rank,
                          const ncclUniqueId& id,
                          bool non_blocking) noexcept;
ncclResult_t all_created(Runtime& runtime,
                         ncclResult_t result,
                         ncclComm_t* comms,
                         int ranks) noexcept;
ncclResult_t split_created(Runtime& runtime,
                           ncclResult_t result,
                           ncclComm_t parent,
                           ncclComm_t* comm,
                           bool non_blocking) noexcept;
// A communicator slimwire leaves native (shrink, scalable creation): only counted.
ncclResult_t native_created(Runtime& runtime,
                            ncclResult_t result,
                            ncclComm_t* comm,
                            const char* reason) noexcept;

// Completes creations the thread queued in its group, whose real end returned `result`.
ncclResult_t finish_group_creations(Runtime& runtime, ncclResult_t result) noexcept;
void drop_group_creations() noexcept;

// Before the real call on the same handle. `abort` does not wait for work.
void comm_ending(Runtime& runtime, ncclComm_t comm, bool abort) noexcept;
void comm_finalizing(Runtime& runtime, ncclComm_t comm) noexcept;

}  // namespace slimwire
