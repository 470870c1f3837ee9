#include "collectives/dispatch/call_types.h"

#include <memory>
#include <utility>

#include "collectives/communicator/graph_memory.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/thread_group.h"

namespace slimwire {
namespace {

void set_claimed(PlanEntry* entry, bool compressed, bool claimed) noexcept {
    entry->claimed[compressed ? 1 : 0] = claimed;
}

void undo_graph_call(Communicator* state, uint64_t key, uint64_t) noexcept {
    state->claims->uncount_graph_call(key);
}

// Whether data of other ranks arrives with the call: they have made theirs when it ends.
bool arrives(const CallSignature& signature, int rank) noexcept {
    const bool is_root = signature.root_or_peer == rank;
    switch (signature.op) {
        case Op::kSend:
            return false;
        case Op::kBroadcast:
        case Op::kScatter:
            return !is_root;
        case Op::kGather:
            return is_root;
        default:
            return true;
    }
}

Status keep(const DeviceApi& api, cudaStream_t stream, std::shared_ptr<void> held) {
    if (held == nullptr) {
        return {};
    }
    const Result<StreamCapture> capture = capture_of(api, stream);
    return capture.ok() ? keep_with_graph(api, capture.value().graph, std::move(held))
                        : Status();  // it is invalid, and no graph comes of it
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
    const std::optional<uint32_t> number = state.claims != nullptr && arrives(signature, state.rank)
                                               ? state.claims->unanswered(signature)
                                               : std::nullopt;
    if (!number.has_value()) {
        return;
    }
    auto hold = std::make_unique<TypeHold>(TypeHold{state.claims, *number});
    if (tolerate(api, api.launch_host_func(work, TypeHold::run, hold.get()))) {
        (void)hold.release();  // run()'s
    }
}

Status count_graph_call(const DeviceApi& api,
                        cudaStream_t stream,
                        Session* state,
                        const TypeClaims::GraphCall& call) {
    if (state->claims == nullptr || state->observed != nullptr) {
        return {};
    }
    if (in_group()) {
        thread_group().journal.add(state, undo_graph_call, TypeClaims::graph_key(call.signature));
    }
    return keep(api, stream, state->claims->count_graph_call(call));
}

Status count_tensors_first(const DeviceApi& api, const CollectiveCall& call, const Session& state) {
    return state.claims != nullptr
               ? keep(api, call.stream, state.claims->is_tensors_first(call.signature))
               : Status();
}

}  // namespace slimwire
