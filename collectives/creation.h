// slimwire's part in the creation of communicators, between the real creation and the first call:
// agreement, members, keys, private communicators. Used by lifecycle.cpp, which knows when.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/agreement.h"
#include "collectives/runtime.h"

namespace slimwire {

// A communicator whose real creation was called, until slimwire's part is done.
struct Creation {
    enum class Kind { kUniqueId, kInitAll, kSplit, kNative };
    Kind kind = Kind::kUniqueId;
    ncclComm_t* out = nullptr;
    int ranks = 0;
    int rank = 0;
    ncclUniqueId id{};
    bool non_blocking = false;
    std::string reason;  // kNative: why
    uint64_t parent_key = 0;

    // Filled on the way.
    std::unique_ptr<CommState> state;
    AgreementClient client;
    Agreement agreement;
};

// Completes what one thread created together: all hellos go out before any answer is waited for. On
// failure all of them are aborted, their handles become null and the error is returned.
ncclResult_t complete_or_undo(Runtime& runtime, std::vector<Creation>& creations) noexcept;

// A rank without a policy changes nothing; where the others have one, they learn it from its hello.
void decline(Runtime& runtime, const Creation& creation) noexcept;

}  // namespace slimwire
