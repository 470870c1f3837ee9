// Communicators coming and going: what surrounds NCCL's own creation and destruction calls. Called
// by plugin/preload after re-entry was ruled out. Creation inside a group is completed by the
// outermost GroupEnd; all hellos of a thread go out before it waits for any answer.
#pragma once

#include <nccl.h>

#include <optional>
#include <span>

#include "collectives/communicator/agreement/private_split.h"
#include "collectives/communicator/process.h"

namespace slimwire {

// After the real ncclGetUniqueId succeeded: starts the agreement server and writes its address into
// the id's tail. Failures are logged and leave the id alone (every rank then goes native).
void unique_id_made(Runtime& runtime, ncclUniqueId* id) noexcept;

// `config` of the creations below is what the program gave NCCL, or null: it may name the
// communicator.
//
// After a real creation call of one rank, of `nccl`, returned `result`; outside a group it
// completes at once, or goes on in the background if NCCL's own part does. Returns the result for
// the program: an error when the ranks agreed on one, and then *comm is null.
ncclResult_t rank_created(Runtime& runtime,
                          const RealNccl& nccl,
                          ncclResult_t result,
                          ncclComm_t* comm,
                          int ranks,
                          int rank,
                          const ncclUniqueId& id,
                          const ncclConfig_t* config = nullptr) noexcept;
ncclResult_t all_created(Runtime& runtime,
                         const RealNccl& nccl,
                         ncclResult_t result,
                         ncclComm_t* comms,
                         int ranks) noexcept;
// The same of one that a split, shrink or grow begins from: refused where a split of slimwire's own
// is left behind, with which NCCL would take the program's for one.
[[nodiscard]] ncclResult_t await_parent(Runtime& runtime, ncclComm_t parent) noexcept;
// Before the real call that makes parts of `parent`, or shrinks it, on every rank that makes it.
// What it returns goes into part_created().
struct PartBegun {
    uint64_t observed_key = 0;
    uint32_t number = 0;                 // Creation::part
    std::span<const int> excluded = {};  // ranks
};
[[nodiscard]] PartBegun split_begins(Runtime& runtime,
                                     ncclComm_t parent,
                                     int color,
                                     int key) noexcept;
[[nodiscard]] PartBegun shrink_begins(Runtime& runtime,
                                      ncclComm_t parent,
                                      std::span<const int> excluded) noexcept;
// After it, on the ranks of the part; the part inherits the parent's agreement.
ncclResult_t part_created(Runtime& runtime,
                          const RealNccl& nccl,
                          ncclResult_t result,
                          ncclComm_t parent,
                          ncclComm_t* comm,
                          const PartBegun& part,
                          const ncclConfig_t* config) noexcept;

// A rank that was in `parent` is in the larger `comm`; `id` where this rank made it. Agrees again,
// with the new ranks, which are rank_created().
ncclResult_t grown(Runtime& runtime,
                   const RealNccl& nccl,
                   ncclResult_t result,
                   ncclComm_t parent,
                   ncclComm_t* comm,
                   const ncclUniqueId* id,
                   const ncclConfig_t* config) noexcept;
// After the real ncclCommGetUniqueId: unique_id_made() if the ranks of `comm` agreed.
void grow_id_made(Runtime& runtime, ncclComm_t comm, ncclUniqueId* id) noexcept;

// Completes creations the thread queued in its group of `nccl`, whose real end returned `result`.
ncclResult_t finish_group_creations(Runtime& runtime,
                                    const RealNccl& nccl,
                                    ncclResult_t result) noexcept;
void drop_group_creations(const RealNccl& nccl) noexcept;

// Before a call that needs the communicator: waits for slimwire's part of its creation when NCCL's
// is done. An error, to be returned without the real call, when NCCL's is not, as NCCL would say,
// or when slimwire's failed.
ncclResult_t await_creation(Runtime& runtime, ncclComm_t comm) noexcept;
// What ncclCommGetAsyncError has to say of a communicator whose creation is not finished, or failed
// in slimwire's part; empty for any other.
std::optional<ncclResult_t> creation_state(ncclComm_t comm) noexcept;
// The same of the private communicator beside one that is well.
ncclResult_t exchange_state(Runtime& runtime, ncclComm_t comm) noexcept;

// Before the real call on the same handle; await() what they return behind it. `abort` does not
// wait for work.
[[nodiscard]] Beside comm_ending(Runtime& runtime, ncclComm_t comm, bool abort) noexcept;
// After the real abort: frees what work in flight kept, which it ended.
void comm_aborted(Runtime& runtime, const Beside& beside) noexcept;
void comm_finalizing(Runtime& runtime, ncclComm_t comm) noexcept;
[[nodiscard]] Beside comm_revoking(Runtime& runtime, ncclComm_t comm, int flags) noexcept;
// After the real call succeeded: the private communicator, too, gives back its memory or gets it
// again. What NCCL says of that is for the program. Slimwire's own goes last and comes back first,
// before the real call.
ncclResult_t comm_suspended(Runtime& runtime, ncclComm_t comm, int flags) noexcept;
ncclResult_t comm_resuming(Runtime& runtime, ncclComm_t comm) noexcept;
ncclResult_t comm_resumed(Runtime& runtime, ncclComm_t comm) noexcept;
// `flags` of ncclCommShrink: those that abort what runs end compressed calls, too.
[[nodiscard]] Beside comm_shrinking(Runtime& runtime, ncclComm_t comm, int flags) noexcept;

}  // namespace slimwire
