#include "collectives/state/replicated_progress.h"

#include <optional>
#include <string>

#include "collectives/call/log.h"
#include "collectives/communicator/bootstrap_gather.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/plan/plan.h"
#include "collectives/state/loaded_state.h"

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

LastingTensor counted_calls(uint64_t checkpoint_key, const Plan& plan) noexcept {
    const CallSignature& signature = plan.signature;
    // The zeros keep the keys of saved files.
    const uint64_t asked = mix_key(mix_key(mix_key(1, signature.ordinal), 0), 0);
    return {checkpoint_key, signature, asked | 1, 0};
}

Status agree_on_progress(Runtime& runtime,
                         const std::vector<ProgressOf>& counting,
                         AbortWatch* watch) {
    PendingState& pending = PendingState::instance();
    std::vector<Communicator*> states;
    std::vector<uint64_t> mine;
    for (const ProgressOf& one : counting) {
        states.push_back(one.communicator);
        mine.push_back(told_progress(pending.comm_of(*one.communicator)));
    }
    std::vector<std::vector<uint64_t>> all;
    SLIMWIRE_TRY(tell_ranks(runtime, states, mine, &all, watch));
    for (size_t i = 0; i < counting.size(); ++i) {
        const Communicator& state = *states[i];
        if (state.missed.others) {
            continue;
        }
        if (const std::optional<size_t> other = other_rank(all[i], mine[i]); other.has_value()) {
            log_line(LogLevel::kWarn,
                     "rank " + std::to_string(state.rank) + " comm " + state.stats->comm +
                         ": rank " + std::to_string(*other) +
                         " loaded another state, or none; controllers and counts begin anew");
        } else if (mine[i] != 0) {
            counting[i].progress->drawn = pending.comm_of(state).drawn_alike;
            ProgressRecords& waiting = counting[i].progress->waiting;
            waiting = pending.take_progress(state.checkpoint_key);
            if (state.group.number != 0) {
                for (auto& [of, bytes] : pending.take_progress(atoms_key(state.group))) {
                    LastingTensor tensor = of.first;
                    tensor.comm = state.checkpoint_key;
                    waiting.emplace(std::pair(tensor, of.second), std::move(bytes));
                }
            }
        }
    }
    return {};
}

}  // namespace slimwire
