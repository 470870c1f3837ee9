#include "collectives/dispatch/call_types.h"

#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/thread_group.h"

namespace slimwire {
namespace {

void set_claimed(PlanEntry* entry, bool compressed, bool claimed) noexcept {
    entry->claimed[compressed ? 1 : 0] = claimed;
}

}  // namespace

bool claim_type(Runtime& runtime,
                const CollectiveCall& call,
                Session* state,
                PlanEntry* entry,
                bool compressed) {
    const CallSignature& signature = call.signature;
    if (state->claims == nullptr || !state->claims->concerns(signature)) {
        entry->claimed.fill(true);
        return false;
    }
    const Result<std::optional<FallbackReason>> refused = malformed(runtime.api(), call, *state);
    if (!refused.ok() || refused.value().has_value()) {
        return false;
    }
    set_claimed(entry, compressed, true);
    if (in_group()) {
        thread_group().claimed.push_back({state, entry, signature, compressed});
    } else {
        state->claims->claim(signature, compressed);
    }
    return true;
}

void tell_types(std::vector<ClaimedCall> calls) {
    for (const ClaimedCall& call : calls) {
        call.state->claims->claim(call.signature, call.compressed);
    }
}

void untell_types(std::vector<ClaimedCall> calls) noexcept {
    for (const ClaimedCall& call : calls) {
        set_claimed(call.entry, call.compressed, false);
    }
}

void await_types(const DeviceApi& api,
                 const Session& state,
                 const CallSignature& signature,
                 cudaStream_t work) {
    const std::optional<uint32_t> number =
        state.claims != nullptr ? state.claims->unanswered(signature) : std::nullopt;
    if (!number.has_value()) {
        return;
    }
    auto hold = std::make_unique<TypeHold>(TypeHold{state.claims, *number});
    if (tolerate(api, api.launch_host_func(work, TypeHold::run, hold.get()))) {
        (void)hold.release();  // run()'s
    }
}

}  // namespace slimwire
