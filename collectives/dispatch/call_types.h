// The first call of each kind tells the other ranks its element type (agreement/type_claims.h): at
// once, or at the end of the group that it is in. Called by dispatch; costs a repeated call one
// look at PlanEntry::claimed. Calls that graphs keep as they were are counted there, too.
#pragma once

#include <vector>

#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/dispatch/session.h"

namespace slimwire {

// A call of a group that is to be told.
struct ClaimedCall {
    Session* state;
    PlanEntry* entry;
    CallSignature signature;
    bool compressed;
};

// Before such a call is made or queued for the first time; one that NCCL will refuse does not
// count. Whether other ranks are told.
bool claim_type(Runtime& runtime,
                const CollectiveCall& call,
                Session* state,
                PlanEntry* entry,
                bool compressed);
// The group of the calls is about to run, or never was.
void tell_types(std::vector<ClaimedCall> calls);
void untell_types(std::vector<ClaimedCall> calls) noexcept;

// Behind a compressed call that is the first of its kind on the stream `work`, outside of captures:
// where data of other ranks has come, the stream waits until the types are known to be alike.
void await_types(const DeviceApi& api,
                 const Session& state,
                 const CallSignature& signature,
                 cudaStream_t work);

// A well-formed call of a kind that TypeClaims counts, on this stream; where it is captured, its
// graph tells how long it may be replayed.
Status count_graph_call(const DeviceApi& api,
                        cudaStream_t stream,
                        Session* state,
                        const TypeClaims::GraphCall& call);
// The same call, which is captured, asks the other ranks what only a tensor's first call asks.
Status count_tensors_first(const DeviceApi& api, const CollectiveCall& call, const Session& state);

}  // namespace slimwire
