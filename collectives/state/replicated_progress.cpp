#include "collectives/state/replicated_progress.h"

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/rank_identities.h"

namespace slimwire {

std::vector<std::byte> Progress::take(const LastingTensor& tensor, StateKind kind) {
    const auto found = waiting.find({tensor, kind});
    if (found == waiting.end()) {
        return {};
    }
    std::vector<std::byte> bytes = std::move(found->second);
    waiting.erase(found);
    return bytes;
}

uint64_t told_progress(const StateComm& loaded) noexcept {
    return loaded.snapshot_id == 0 ? 0 : mix_key(loaded.snapshot_id, loaded.drawn_alike) | 1;
}

LastingTensor counted_calls(const Communicator& state, const Plan& plan) noexcept {
    const CallSignature& signature = plan.signature;
    // The zeros keep the keys of saved files.
    const uint64_t asked = mix_key(mix_key(mix_key(1, signature.ordinal), 0), 0);
    return {state.checkpoint_key, signature, asked | 1, 0};
}

Status for_progress(const Communicator& state, const ReadMemory& read, const KeepRecord& keep) {
    for (const auto& [of, bytes] : state.progress.waiting) {
        keep(of.first, of.second, bytes);
    }
    SLIMWIRE_TRY(state.accordions.save(state, read, keep));
    for (const auto& [place, tensor] : state.averaged) {
        RecordWriter record;
        record.put(tensor.calls);
        keep({state.checkpoint_key, place.plan->signature, tensor.path, place.ordinal},
             StateKind::kAveraging, record.take());
    }
    state.plans.for_each([&](const Plan& plan) {
        if (plan.counted() && !is_point_to_point(plan.signature.op)) {
            RecordWriter record;
            record.put(plan.calls);
            keep(counted_calls(state, plan), StateKind::kCalls, record.take());
        }
    });
    return {};
}

}  // namespace slimwire
