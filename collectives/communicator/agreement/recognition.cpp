#include <algorithm>
#include <type_traits>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/hash.h"
#include "collectives/communicator/agreement/handshake.h"
#include "collectives/communicator/agreement/private_split.h"
#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/communicator/agreement/wire.h"
#include "collectives/communicator/bootstrap_gather.h"
#include "collectives/communicator/rank_identities.h"

namespace slimwire {
namespace {

// What all ranks would tell where they are these; empty where this one is not, or tells more.
std::vector<Member> parents_members(Runtime& runtime, const Creation& creation) {
    const Communicator& state = *creation.state;
    std::vector<Member> members = creation.parent_members;
    const Member mine = member_of(runtime, state, creation.parent_key);
    for (Member& member : members) {
        member.registered = mine.registered;
        member.name = mine.name;
        member.parent_key = mine.parent_key;
        member.scratch_bytes = mine.scratch_bytes;
    }
    return members[static_cast<size_t>(state.rank)] == mine && !runtime.listener->tells()
               ? members
               : std::vector<Member>();
}

// Takes the parent's members for those that are to be this one's, where the ranks of a split heard
// who these are.
Status take_part(Runtime& runtime, Creation* creation, AbortWatch* watch) {
    constexpr uint64_t kLookUs = 20000, kPatienceUs = 2000000;  // then ranks meet as strangers
    const uint64_t deadline_us = std::min(creation_deadline_us(runtime), steady_us() + kPatienceUs);
    std::vector<int32_t> brief;
    while (!creation->parent_claims->part(creation->part, kLookUs, &brief)) {
        bool busy = false;
        SLIMWIRE_TRY(watch->look(&busy));
        if (steady_us() >= deadline_us) {
            creation->parent_claims->splits_untold();
            break;
        }
    }
    std::vector<Member> part;
    for (const int32_t rank :
         agreement_wire::ranks_in_brief(brief, static_cast<size_t>(creation->ranks))) {
        if (static_cast<size_t>(rank) >= creation->parent_members.size()) {
            return {};
        }
        part.push_back(creation->parent_members[static_cast<size_t>(rank)]);
    }
    if (!part.empty()) {
        creation->parent_members = std::move(part);
    }
    return {};
}

// Equal on ranks that take the same ranks for the members, and another one on each rank else.
int color_of(const Communicator& state, const std::vector<Member>& members) {
    uint64_t hash = mix_key(stable_hash("not as the parent"), static_cast<uint64_t>(state.rank));
    if (!members.empty()) {
        static_assert(std::has_unique_object_representations_v<Member>);
        hash = stable_hash(
            {reinterpret_cast<const char*>(members.data()), members.size() * sizeof(Member)});
    }
    return static_cast<int>(hash & 0x7fffffff);
}

// The ranks of a communicator wait for each other on the host: on private communicators, a split of
// which makes none. `split->status` says whether all came in time.
Status meet_on(const std::shared_ptr<Split>& split, uint64_t deadline_us, AbortWatch* watch) {
    SLIMWIRE_TRY(run_leavable(split, deadline_us, watch));
    bool busy = split->status.ok();
    for (Backoff backoff; busy; backoff.pause()) {
        SLIMWIRE_TRY(watch->look(&busy));
        if (busy && steady_us() >= deadline_us) {
            split->status = Status(Code::kSystemError, kNotHeard);
            return {};
        }
    }
    split->unsettled = false;
    return {};
}

// The communicators are native: a private one failed here, or another rank did not come for it. An
// error where that is because a rank is gone, which ranks see when they tell each other something.
Status give_up(Runtime& runtime,
               const std::vector<Creation*>& creations,
               const Split& split,
               AbortWatch* watch) {
    std::vector<Communicator*> states;
    for (const Creation* creation : creations) {
        states.push_back(creation->state.get());
    }
    std::vector<std::vector<char>> all;
    SLIMWIRE_TRY(tell_ranks(runtime, states, std::vector<char>(states.size()), &all, watch));
    for (Creation* creation : creations) {
        Communicator& state = *creation->state;
        // A split that was left on the private one ends with it.
        const bool left = split.left && state.exchange_comm == nullptr;
        abort_private(&state);
        state.agreed = false;
        state.missed = {true, left};
        state.members.clear();
        creation->agreement.text = "no private communicator: " + split.status.message();
    }
    return {};
}

// Splits off the private communicators of `parts`, by what their ranks would tell.
Status split_private(Runtime& runtime,
                     const std::vector<Creation*>& parts,
                     const std::shared_ptr<Split>& split,
                     AbortWatch* watch) {
    for (Creation* creation : parts) {
        const Communicator& state = *creation->state;
        creation->parent_members = parents_members(runtime, *creation);
        split->parts.push_back(
            {state.comm, color_of(state, creation->parent_members), state.rank, state.configured});
    }
    const uint64_t deadline_us = steady_us() + split_timeout_us(runtime);
    SLIMWIRE_TRY(run_split(split, deadline_us, watch));
    if (!split->status.ok()) {
        return give_up(runtime, parts, *split, watch);
    }
    for (size_t i = 0; i < parts.size(); ++i) {
        ncclComm_t* const exchange = &parts[i]->state->exchange_comm;
        __atomic_store_n(exchange, split->parts[i].made, __ATOMIC_RELEASE);
    }
    SLIMWIRE_TRY(watch->settle(deadline_us));
    split->unsettled = false;
    return {};
}

}  // namespace

Status recognize(Runtime& runtime, std::vector<Creation*>* strangers, AbortWatch* watch) {
    std::vector<Creation*> parts;
    std::vector<uint64_t> free_bytes;
    for (Creation* creation : *strangers) {
        // All of the parent's are usually in its order, which needs no answer.
        const bool all = creation->parent_members.size() == static_cast<size_t>(creation->ranks);
        if (creation->part != 0 && !(all && !parents_members(runtime, *creation).empty())) {
            SLIMWIRE_TRY(take_part(runtime, creation, watch));
        }
        if (creation->parent_members.size() == static_cast<size_t>(creation->ranks) &&
            !creation->configured.shares) {
            const DeviceScope device(runtime.api(), creation->state->device);
            parts.push_back(creation);
            free_bytes.push_back(free_device_bytes(runtime.api()));
        }
    }
    if (parts.empty()) {
        return {};
    }
    const uint64_t began_us = steady_us();
    const auto split = std::make_shared<Split>(runtime, *parts.front()->state);
    SLIMWIRE_TRY(split_private(runtime, parts, split, watch));
    const auto meeting = std::make_shared<Split>(runtime, *parts.front()->state);
    std::vector<Creation*> recognized;
    for (size_t i = 0; i < parts.size() && split->status.ok(); ++i) {
        Communicator& state = *parts[i]->state;
        int count = 0;
        if (state.nccl->CommCount(state.exchange_comm, &count) == ncclSuccess &&
            count == state.shape.ranks && !parts[i]->parent_members.empty()) {
            parts[i]->recognized = true;
            state.members = std::move(parts[i]->parent_members);
            recognized.push_back(parts[i]);
            meeting->parts.push_back({state.exchange_comm, NCCL_SPLIT_NOCOLOR, 0});
            note_private(runtime.api(), &state, began_us, free_bytes[i]);
        } else {
            abort_private(&state);
        }
    }
    if (!recognized.empty()) {
        SLIMWIRE_TRY(meet_on(meeting, creation_deadline_us(runtime), watch));
        if (!meeting->status.ok()) {
            SLIMWIRE_TRY(give_up(runtime, recognized, *meeting, watch));
        }
    }
    std::erase_if(*strangers, [](const Creation* creation) {
        return creation->recognized || !creation->state->agreed;
    });
    return {};
}

}  // namespace slimwire
