#include "collectives/dispatch/call_pairs.h"

#include "collectives/algorithms/factored_blocks.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/algorithms/paired_exchange.h"
#include "collectives/dispatch/session.h"

namespace slimwire {
namespace {

// The masks that a message with pair=mask goes by, or a collective's to or from one rank.
Status pair_with(const BeforeCall& before,
                 const QueuedCall& item,
                 HeldMasks* masks,
                 PairUse* pair) {
    const MessagePairing::Place& place = item.pair;
    const CallSignature& signature = item.plan->signature;
    *pair = {};
    pair->place = place;
    pair->backward = signature.direction == Direction::kBackward;
    pair->masks = masks;
    SLIMWIRE_TRY_ASSIGN(pair->misses, masks->misses(before, item.state));
    if (place.waits) {
        const Layout& layout = item.plan->layout;
        const uint64_t bytes = layout.factored != nullptr
                                   ? factored_blocks_kept(layout)
                                   : static_cast<uint64_t>(masked_frame(*item.plan).mask_bytes());
        SLIMWIRE_TRY_ASSIGN(pair->kept,
                            masks->keep(before, item.state, signature, place.number, bytes));
        pair->sample = masks->sample(item.state, place.number);
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

// The weights that a message goes by, and what is kept of it.
Status pair_by_code(const BeforeCall& before, const QueuedCall& item, PairUse* pair) {
    Session& state = *item.state;
    const MessagePairing::Place& place = item.pair;
    const CallSignature& signature = item.plan->signature;
    const CodecParams& params = item.plan->layout.factored->codec.params;
    const int peer = signature.root_or_peer;
    HeldMasks& held = state.masks[{peer, place.forward, Session::Masked::kCode}];
    *pair = {};
    pair->place = place;
    pair->backward = signature.direction == Direction::kBackward;
    pair->masks = &held;
    pair->weights = &state.codes[{peer, place.forward, params.row, params.kept, params.seed}];
    SLIMWIRE_TRY(pair->weights->prepare(before, &state, *item.plan));
    SLIMWIRE_TRY_ASSIGN(pair->misses, held.misses(before, &state));
    pair->last = state.pairs[peer].waiting(place.forward) == 0;
    if (place.waits) {
        const bool at_sender = signature.op == Op::kSend;
        SLIMWIRE_TRY_ASSIGN(pair->kept, held.keep(before, &state, signature, place.number,
                                                  learned_code_kept(*item.plan, at_sender)));
        pair->sample = held.sample(&state, place.number);
    }
    if (place.answers.has_value()) {
        pair->answered = held.find(*place.answers);
    }
    return {};
}

}  // namespace

bool goes_by_pairs(const Plan& plan) noexcept {
    return is_paired(plan.layout) || (plan.compressed && plan.layout.factored != nullptr &&
                                      is_point_to_point(plan.signature.op));
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
                                     &pair));
        return std::span<PairUse>(&**own, 1);
    }
    state.pair_uses.assign(2 * static_cast<size_t>(state.shape.ranks), {});
    for (int at = 0; at < 2 * state.shape.ranks; ++at) {
        const Op forward = at % 2 == 0 ? Op::kSend : Op::kRecv;
        // A rank keeps what it gives itself once.
        if (at / 2 != state.rank || (forward == Op::kSend && signature.op != Op::kAllToAll)) {
            SLIMWIRE_TRY(pair_with(before, item,
                                   &state.masks[{at / 2, forward, Session::Masked::kCollective}],
                                   &state.pair_uses[static_cast<size_t>(at)]));
        }
    }
    return std::span<PairUse>(state.pair_uses);
}

}  // namespace slimwire
