// slimwire's part in the creation of communicators, between the real creation and the first call:
// agreement, members, keys, private communicators. Used by lifecycle.cpp, which knows when.
//
// The part of non-blocking communicators goes on in a thread of slimwire's, as NCCL's own does:
// a program may poll one communicator only after another rank told it that its own is ready, so
// progress in the poll would wait for ever. The thread ends with the creation.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/process.h"

namespace slimwire {

struct IdSharing;  // agreement/handshake.h
class TypeClaims;  // agreement/type_claims.h

// A communicator whose real creation was called, until slimwire's part is done.
struct Creation {
    enum class Kind { kUniqueId, kInitAll, kSplit, kGrown, kNative };
    Kind kind = Kind::kUniqueId;
    const RealNccl* nccl = nullptr;  // that makes it; one for all that a thread makes together
    ncclComm_t* out = nullptr;
    int ranks = 0;  // 0: NCCL knows
    int rank = 0;
    ncclUniqueId id{};  // kGrown: only the rank that made it has it at first
    ncclComm_t parent = nullptr;
    uint64_t parent_key = 0;
    // kSplit, as what follows. The members are those that a shrink leaves; of a split the ones of
    // the part once `parent_claims` say who these are, which are asked for as `part`.
    std::vector<Member> parent_members;
    std::shared_ptr<TypeClaims> parent_claims;
    uint32_t part = 0;
    std::shared_ptr<const CommCosts> parent_costs;
    std::string reason;  // kNative: why
    Configured configured;
    std::optional<AgreementAddress> server;  // kInitAll; kSplit, where the parent has one
    uint64_t observed_key = 0;               // for an observing mode; 0: nothing tells it

    // Filled on the way.
    PendingCreationRef pending;
    std::shared_ptr<IdSharing> sharing;  // kGrown
    size_t shared_as = 0;                // its number in that
    std::unique_ptr<Communicator> state;
    AgreementClient client;
    Agreement agreement;
    bool recognized = false;  // kSplit: all ranks took the same ones for the members
};

// Completes what one thread created together: all hellos go out before any answer is waited for. On
// failure all of them are aborted, their handles become null and the error is returned.
ncclResult_t complete_or_undo(Runtime& runtime, std::vector<Creation>& creations) noexcept;

// The same for communicators that NCCL still makes in the background; returns at once. A failure
// leaves the handles to the program, which hears of it from ncclCommGetAsyncError.
ncclResult_t complete_in_background(Runtime& runtime, std::vector<Creation> creations) noexcept;

// A rank without a policy changes nothing; where the others have one, they learn it from its hello.
// `wait`: in this thread.
void opt_out(Runtime& runtime, const Creation& creation, bool wait) noexcept;

}  // namespace slimwire
