#include "collectives/dispatch/call_pairs.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "collectives/algorithms/factored_blocks.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/algorithms/paired_exchange.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/dispatch/session.h"

namespace slimwire {
namespace {

// The masks that a message with pair=mask goes by, or a collective's to or from one rank. `own`:
// answers come to this rank.
Status pair_with(
    const BeforeCall& before, const QueuedCall& item, HeldMasks* masks, bool own, PairUse* pair) {
    const MessagePairing::Place& place = item.pair;
    const CallSignature& signature = item.plan->signature;
    *pair = {};
    pair->place = place;
    pair->backward = signature.direction == Direction::kBackward;
    pair->masks = masks;
    SLIMWIRE_TRY_ASSIGN(pair->misses, masks->misses(before, item.state));
    const int peer =
        is_point_to_point(signature.op) ? signature.root_or_peer : Session::kCollectives;
    pair->first_of_step = item.state->pairs[peer].first_of_step(place.forward);
    if (place.waits) {
        const Layout& layout = item.plan->layout;
        const uint64_t bytes = layout.factored != nullptr
                                   ? factored_blocks_kept(layout)
                                   : static_cast<uint64_t>(masked_frame(*item.plan).mask_bytes());
        SLIMWIRE_TRY_ASSIGN(pair->kept, masks->keep(before, item.state, signature, place.number,
                                                    pair->first_of_step, bytes));
        pair->sample = masks->sample(item.state, place.number, own);
    }
    if (place.answers.has_value()) {
        pair->answered = masks->find(*place.answers);
    }
    if (pair->backward && !is_point_to_point(signature.op)) {
        SLIMWIRE_TRY_ASSIGN(const bool alone,
                            masks->explicit_positions(before.api, item.state, place.number));
        pair->backward = !alone;
    }
    return {};
}

LastingTensor pairs_of(const Session& state, int peer) noexcept {
    return {state.checkpoint_key, {.root_or_peer = peer}, stable_hash("messages") | 1, 0};
}

LastingTensor weights_of(const Session& state,
                         Op forward,
                         int peer,
                         const CodecParams& params,
                         uint64_t elems) noexcept {
    return {state.checkpoint_key,
            {.op = forward, .root_or_peer = peer, .count = elems},
            mix_key(mix_key(stable_hash("weights"), params.row), params.kept) | 1,
            params.seed};
}

// Which of the weights of a way the plan's calls go by.
uint64_t code_of(const Plan& plan) noexcept {
    const CodecParams& params = plan.layout.factored->codec.params;
    return mix_key(mix_key(params.row, params.kept), params.seed) | 1;
}

// The weights of the end that `forward` ones are this at.
Status take_weights(
    const BeforeCall& before, const QueuedCall& item, int peer, Op forward, PairUse* pair) {
    Session& state = *item.state;
    const CodecParams& params = item.plan->layout.factored->codec.params;
    pair->weights = &state.codes[{peer, forward, params.row, params.kept, params.seed}];
    SLIMWIRE_TRY(pair->weights->prepare(
        before, &state, *item.plan,
        weights_of(state, forward, peer, params,
                   static_cast<uint64_t>(item.plan->layout.factored->factors.right_elems)),
        &state.progress));
    SLIMWIRE_TRY_ASSIGN(const uint64_t average_bytes,
                        pair->weights->begin_use(before.api, before.stream));
    item.stats->count_control(average_bytes);
    return {};
}

// The weights that a message or a collective goes by, and what is kept of it.
Status pair_by_code(const BeforeCall& before, const QueuedCall& item, PairUse* pair) {
    Session& state = *item.state;
    const MessagePairing::Place& place = item.pair;
    const CallSignature& signature = item.plan->signature;
    const bool message = is_point_to_point(signature.op);
    const int peer = message ? signature.root_or_peer : Session::kCollectives;
    HeldMasks& held = state.masks[{peer, place.forward, Session::Masked::kCode}];
    *pair = {};
    pair->place = place;
    pair->backward = signature.direction == Direction::kBackward;
    pair->masks = &held;
    SLIMWIRE_TRY(take_weights(before, item, peer, place.forward, pair));
    if (message) {
        SLIMWIRE_TRY_ASSIGN(pair->misses, held.misses(before, &state));
    }
    pair->first = pair->weights->take_left(place.mark);
    if (pair->backward) {
        pair->weights->count_answer(place.mark);
    }
    // Messages of a group run together: the step is behind all of them, where none of those forward
    // waits. Collectives run one by one, so that how a rank groups them decides nothing.
    pair->last =
        place.last && (!message || state.pairs[peer].newest_use(code_of(*item.plan), place));
    if (place.waits) {
        const bool at_sender = signature.op == Op::kSend;
        const uint64_t bytes = message ? learned_code_kept(*item.plan, at_sender)
                                       : shared_code_kept(*item.plan, state.shape.ranks);
        SLIMWIRE_TRY_ASSIGN(pair->kept,
                            held.keep(before, &state, signature, place.number,
                                      state.pairs[peer].first_of_step(place.forward), bytes));
        pair->sample = message ? held.sample(&state, place.number, at_sender) : nullptr;
    }
    if (place.answers.has_value()) {
        pair->answered = held.find(*place.answers);
    }
    return {};
}

}  // namespace

void note_pair(QueuedCall* item) {
    if (is_learned(item->plan->layout)) {
        const CallSignature& signature = item->plan->signature;
        pairing_of(item->state,
                   is_point_to_point(signature.op) ? signature.root_or_peer : Session::kCollectives)
            .use(code_of(*item->plan), &item->pair);
    }
}

MessagePairing& pairing_of(Session* state, int peer) {
    const auto [found, made] = state->pairs.try_emplace(peer);
    if (made) {
        const std::vector<std::byte> loaded =
            state->progress.take(pairs_of(*state, peer), StateKind::kMessages);
        std::vector<uint64_t> numbers(loaded.size() / sizeof(uint64_t));
        if (!numbers.empty()) {
            std::memcpy(numbers.data(), loaded.data(), numbers.size() * sizeof(uint64_t));
            (void)found->second.go_on(numbers);
        }
    }
    return found->second;
}

void add_pairs(const Session& state, StateIndex* index, std::vector<StateSource>* sources) {
    const auto add = [&](const LastingTensor& tensor, uint64_t bytes, StateSource source) {
        index->tensors.push_back({tensor, 0, bytes, StateKind::kMessages});
        sources->push_back(std::move(source));
    };
    const auto add_numbers = [&](const LastingTensor& tensor, std::span<const uint64_t> numbers) {
        RecordWriter record;
        std::for_each(numbers.begin(), numbers.end(), [&](uint64_t one) { record.put(one); });
        add(tensor, numbers.size_bytes(), {.own = record.take()});
    };
    for (const auto& [peer, pairing] : state.pairs) {
        add_numbers(pairs_of(state, peer), pairing.save());
    }
    for (const auto& [way, weights] : state.codes) {
        const CodeWeights::Saved saved = weights.save();
        if (saved.memory != nullptr) {
            add(saved.tensor, saved.bytes, {.memory = saved.memory, .device = state.device});
            add_numbers(CodeWeights::steps_of(saved.tensor), saved.counts);
        }
    }
}

Result<std::span<PairUse>> pair_up(const BeforeCall& before,
                                   const QueuedCall& item,
                                   std::optional<PairUse>* own) {
    Session& state = *item.state;
    const CallSignature& signature = item.plan->signature;
    if (is_point_to_point(signature.op)) {
        PairUse& pair = own->emplace();
        SLIMWIRE_TRY(is_learned(item.plan->layout)
                         ? pair_by_code(before, item, &pair)
                         : pair_with(before, item,
                                     &state.masks[{signature.root_or_peer, item.pair.forward,
                                                   Session::Masked::kMessage}],
                                     item.pair.forward == Op::kSend, &pair));
        return std::span<PairUse>(&**own, 1);
    }
    if (is_learned(item.plan->layout)) {  // E's end, and D's
        state.pair_uses.assign(2, {});
        SLIMWIRE_TRY(pair_by_code(before, item, &state.pair_uses[0]));
        SLIMWIRE_TRY(
            take_weights(before, item, Session::kCollectives, Op::kRecv, &state.pair_uses[1]));
        const PairUse& use = state.pair_uses[0];
        const int steps = (use.first ? 1 : 0) + (use.backward && use.last ? 1 : 0);
        item.stats->count_control(
            static_cast<uint64_t>(steps) *
            shared_code_step_wire(item.plan->layout, state.shape.ranks, state.rank));
        return std::span<PairUse>(state.pair_uses);
    }
    state.pair_uses.assign(2 * static_cast<size_t>(state.shape.ranks), {});
    for (int at = 0; at < 2 * state.shape.ranks; ++at) {
        const Op forward = at % 2 == 0 ? Op::kSend : Op::kRecv;
        // A rank keeps what it gives itself once.
        if (at / 2 != state.rank || (forward == Op::kSend && signature.op != Op::kAllToAll)) {
            SLIMWIRE_TRY(pair_with(
                before, item, &state.masks[{at / 2, forward, Session::Masked::kCollective}],
                forward == Op::kSend, &state.pair_uses[static_cast<size_t>(at)]));
        }
    }
    return std::span<PairUse>(state.pair_uses);
}

}  // namespace slimwire
