#include "collectives/communicator/creation.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/communicator/agreement/handshake.h"
#include "collectives/communicator/agreement/private_split.h"
#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/communicator/bootstrap_gather.h"
#include "collectives/communicator/rank_identities.h"

namespace slimwire {
namespace {

// Whether a rule may compress on the communicator, as far as ranks know that did not hear where the
// others are and how they name it.
bool may_compress(const Runtime& runtime, const Communicator& state) {
    return state.agreed && runtime.config.policy.can_compress(state.shape.ranks);
}

// The same once they heard.
bool can_compress(const Runtime& runtime, const Communicator& state) {
    return !state.missed.others && state.shape.go &&
           runtime.config.policy.can_compress(state.shape.ranks, state.shape.scope,
                                              state.shape.name);
}

enum class Has : uint8_t { kIt, kNone, kLeft };

// A private communicator that a rank lacks makes all of them native.
Status have_all_or_none(Runtime& runtime,
                        const std::vector<Communicator*>& states,
                        const Status& made,
                        bool left,
                        AbortWatch* watch) {
    std::vector<Has> mine;
    for (const Communicator* state : states) {
        mine.push_back(left                                 ? Has::kLeft
                       : made.ok() && !state->missed.others ? Has::kIt
                                                            : Has::kNone);
    }
    std::vector<std::vector<Has>> all;
    SLIMWIRE_TRY(tell_ranks(runtime, states, mine, &all, watch, split_timeout_us(runtime)));
    for (size_t i = 0; i < states.size(); ++i) {
        Communicator* state = states[i];
        state->missed.split =
            left || std::find(all[i].begin(), all[i].end(), Has::kLeft) != all[i].end();
        const auto lacking =
            std::find_if(all[i].begin(), all[i].end(), [](Has has) { return has != Has::kIt; });
        if (!state->missed.others && lacking == all[i].end()) {
            continue;
        }
        abort_private(state);
        state->members.clear();  // which not all ranks may know: its parts meet as strangers
        if (state->shape.go) {
            stay_native(state, state->missed.others ? kNotHeard
                               : !made.ok()
                                   ? "no private communicator: " + made.message()
                                   : "rank " + std::to_string(lacking - all[i].begin()) +
                                         " has no private communicator, or did not hear of others");
        }
    }
    return {};
}

// Ids for those that share with what is split off, from the first rank, where all ranks are to have
// one. All configure a communicator alike, as NCCL asks.
Status share_private_ids(Runtime& runtime,
                         const std::vector<Communicator*>& states,
                         Split* split,
                         AbortWatch* watch) {
    std::vector<Communicator*> sharing;
    std::vector<Split::Part*> parts;
    std::vector<std::optional<ncclUniqueId>> mine;
    for (size_t i = 0; i < states.size(); ++i) {
        Split::Part& part = split->parts[i];
        if (part.sharing_ranks == 0) {
            continue;
        }
        sharing.push_back(states[i]);
        parts.push_back(&part);
        ncclUniqueId id{};
        const bool joins = part.color != NCCL_SPLIT_NOCOLOR &&
                           (part.rank != 0 || states[i]->nccl->GetUniqueId(&id) == ncclSuccess);
        mine.push_back(joins ? std::optional(id) : std::nullopt);
    }
    if (sharing.empty()) {
        return {};
    }
    std::vector<std::vector<std::optional<ncclUniqueId>>> all;
    SLIMWIRE_TRY(tell_ranks(runtime, sharing, mine, &all, watch));
    for (size_t i = 0; i < sharing.size(); ++i) {
        if (!sharing[i]->missed.others &&
            std::all_of(all[i].begin(), all[i].end(),
                        [](const auto& id) { return id.has_value(); })) {
            parts[i]->id = all[i].front();
        }
    }
    return {};
}

// Private communicators for the exchanges, only where a rule can match.
Status make_exchange_comms(Runtime& runtime, std::vector<Creation>& creations, AbortWatch* watch) {
    std::vector<Communicator*> states;
    for (Creation& creation : creations) {
        Communicator& state = *creation.state;
        if (!creation.recognized && may_compress(runtime, state)) {
            states.push_back(&state);
        } else if (state.exchange_comm != nullptr && !can_compress(runtime, state)) {
            abort_private(&state);
            state.stats->private_connections = 0;
        }
    }
    if (states.empty()) {
        return {};
    }
    const DeviceApi& api = runtime.api();
    const uint64_t began_us = steady_us();
    std::vector<uint64_t> free_bytes;
    const auto split = std::make_shared<Split>(runtime, *states.front());
    for (const Communicator* state : states) {
        const DeviceScope device(api, state->device);
        free_bytes.push_back(free_device_bytes(api));
        split->parts.push_back({state->comm, can_compress(runtime, *state) ? 0 : NCCL_SPLIT_NOCOLOR,
                                state->rank, state->configured});
        split->parts.back().sharing_ranks = state->configured.shares ? state->shape.ranks : 0;
        split->parts.back().device = state->device;
    }
    SLIMWIRE_TRY(share_private_ids(runtime, states, split.get(), watch));
    const uint64_t deadline_us = began_us + split_timeout_us(runtime);
    SLIMWIRE_TRY(run_split(split, deadline_us, watch));
    if (split->status.ok()) {
        for (size_t i = 0; i < states.size(); ++i) {
            __atomic_store_n(&states[i]->exchange_comm, split->parts[i].made, __ATOMIC_RELEASE);
        }
        Status settled = watch->settle(deadline_us);
        if (!settled.ok() && steady_us() < deadline_us) {
            return settled;
        }
        if (!settled.ok()) {  // some private one is busy, the program's are not
            std::for_each(states.begin(), states.end(), abort_private);
            split->status = std::move(settled);
        }
        split->unsettled = false;
    }
    SLIMWIRE_TRY(have_all_or_none(runtime, states, split->status, split->left, watch));
    for (size_t i = 0; i < states.size(); ++i) {
        if (states[i]->exchange_comm != nullptr) {
            note_private(api, states[i], began_us, free_bytes[i]);
        }
    }
    return {};
}

// The ranks of one ncclCommInitAll are the creations whose handles lie in one array. They compress
// if all of their devices can.
void adopt_array(Runtime& runtime, const std::vector<Creation>& creations, Creation* creation) {
    for (const Creation& other : creations) {
        if (other.kind != Creation::Kind::kInitAll ||
            other.out - other.rank != creation->out - creation->rank) {
            continue;
        }
        creation->state->members.push_back(member_of(runtime, *other.state, 0));
        if (!other.agreement.text.empty()) {
            creation->agreement = other.agreement;
        }
    }
}

// Where the server is that compares what its ranks say.
std::optional<AgreementAddress> address_of(const Creation& creation) {
    AgreementAddress address;
    return creation.server.has_value() || read_id_tail(creation.id, &address) != TailState::kPresent
               ? creation.server
               : std::optional(address);
}

// Equal on the ranks of one creation; 0 where that is a split, of which a parent has many.
uint64_t token_of(const Creation& creation) {
    const std::optional<AgreementAddress> address = address_of(creation);
    return creation.kind != Creation::Kind::kSplit && address.has_value() ? address->token : 0;
}

// All ranks of the communicators that agreed tell each other who they are.
Status meet(Runtime& runtime, std::vector<Creation>& creations, AbortWatch* watch) {
    std::vector<Creation*> unknown;
    for (Creation& creation : creations) {
        Communicator& state = *creation.state;
        state.agreed = creation.agreement.verdict == Verdict::kGo;
        state.shape.go = state.agreed;
        if (state.agreed && creation.kind == Creation::Kind::kInitAll) {
            adopt_array(runtime, creations, &creation);
            state.agreed = state.shape.go = creation.agreement.text.empty();
            if (!state.agreed) {
                state.members.clear();
            }
        } else if (state.agreed && state.shape.ranks == 1) {
            state.members = {member_of(runtime, state, creation.parent_key)};
        } else if (state.agreed && !may_compress(runtime, state)) {
            state.shape.go = false;  // on all ranks, which need not meet for that
        } else if (state.agreed) {
            unknown.push_back(&creation);
        }
    }
    SLIMWIRE_TRY(recognize(runtime, &unknown, watch));
    std::vector<Communicator*> strangers;
    std::vector<Member> mine;
    for (const Creation* creation : unknown) {
        strangers.push_back(creation->state.get());
        mine.push_back(member_of(runtime, *creation->state, creation->parent_key));
    }
    std::vector<std::vector<Member>> members;
    SLIMWIRE_TRY(tell_ranks(runtime, strangers, mine, &members, watch));
    for (size_t i = 0; i < strangers.size(); ++i) {
        if (!strangers[i]->missed.others) {
            strangers[i]->members = std::move(members[i]);
        }
    }
    for (Creation& creation : creations) {
        Communicator& state = *creation.state;
        if (!state.members.empty()) {
            SLIMWIRE_TRY(adopt_members(runtime, token_of(creation), &state));
            if (runtime.config.policy.wants_names()) {
                adopt_name(&state);
            }
            state.stats->agreement = "go";
            continue;
        }
        const bool unmet = state.agreed && !state.missed.others;
        state.shape.native_reason = unmet ? "no rule can match a communicator of " +
                                                std::to_string(state.shape.ranks) + " ranks"
                                          : creation.agreement.text;
        state.stats->agreement = unmet ? "go" : "native: " + creation.agreement.text;
        state.stats->comm = hex_key(
            mix_key(reinterpret_cast<uintptr_t>(state.comm), static_cast<uint64_t>(getpid())));
        if (state.missed.others) {
            stay_native(&state, state.agreed ? kNotHeard : creation.agreement.text);
        }
    }
    return {};
}

// Calls of other types than the other ranks' are found out by the server that made them agree.
void adopt_server(const Runtime& runtime, const Creation& creation) {
    Communicator& state = *creation.state;
    const std::optional<AgreementAddress> address = address_of(creation);
    const uint32_t ops = state.exchange_comm == nullptr
                             ? 0
                             : runtime.config.policy.compressed_ops(
                                   state.shape.ranks, state.shape.scope, state.shape.name);
    if (state.agreed && address.has_value()) {
        state.claims = std::make_shared<TypeClaims>(
            TypeClaims::Of{*address, state.comm_key, state.shape.ranks, state.rank, ops,
                           log_prefix(state), runtime.config.settings.agree_timeout_us});
    }
}

Status complete(Runtime& runtime, std::vector<Creation>& creations) {
    if (creations.empty()) {
        return {};
    }
    const uint64_t began_us = steady_us();
    if (runtime.device().ok()) {
        runtime.device_memory.collect(runtime.api());
    }
    AbortWatch watch(*creations.front().nccl);
    for (Creation& creation : creations) {
        creation.state = runtime.listener->make();
        creation.state->nccl = creation.nccl;
        creation.state->memory = &runtime.memory;
        creation.state->device_memory = &runtime.device_memory;
        if (creation.nccl->CommSuspend != nullptr) {
            creation.state->objects.home = runtime.device_memory.next_home();
        }
        creation.state->configured = creation.configured;
        creation.state->shape.costs = creation.parent_costs;
        watch.add(creation.pending, &creation.state->exchange_comm);
    }
    SLIMWIRE_TRY(share_ids(runtime, creations, &watch));
    for (Creation& creation : creations) {
        SLIMWIRE_TRY(send_hello(runtime, &creation, &watch));
    }
    for (Creation& creation : creations) {
        SLIMWIRE_TRY(hear(runtime, &creation, &watch));
    }
    SLIMWIRE_TRY(meet(runtime, creations, &watch));
    std::vector<Communicator*> compressing, strangers;
    for (const Creation& creation : creations) {
        if (may_compress(runtime, *creation.state)) {
            compressing.push_back(creation.state.get());
            if (!creation.recognized) {
                strangers.push_back(creation.state.get());
            }
        }
    }
    SLIMWIRE_TRY(runtime.listener->agree(compressing, strangers, &watch));
    SLIMWIRE_TRY(make_exchange_comms(runtime, creations, &watch));
    std::vector<Communicator*> untimed;  // parts go by their parent's times
    for (const Creation& creation : creations) {
        if (creation.kind != Creation::Kind::kSplit && creation.state->exchange_comm != nullptr) {
            untimed.push_back(creation.state.get());
        }
    }
    SLIMWIRE_TRY(runtime.listener->time_calls(untimed, &watch));
    for (Creation& creation : creations) {
        Communicator& state = *creation.state;
        state.shape.private_comm = state.exchange_comm != nullptr;
        if (!state.shape.private_comm && runtime.device().ok()) {
            drop_reserve(runtime.api(), &state);
        }
        adopt_server(runtime, creation);
        runtime.listener->created(&state);
        state.stats->setup_us = steady_us() - began_us;
        if (log_enabled(LogLevel::kInfo)) {
            log_line(LogLevel::kInfo, log_prefix(state) + ": " + std::to_string(state.shape.ranks) +
                                          " ranks on " + std::to_string(state.stats->nodes) +
                                          " nodes: " + state.stats->agreement);
        }
        state.stats->update([](CommStats&) {});  // shown from now on
        runtime.libraries.record(state.comm, state.nccl);
        runtime.comms.add(std::move(creation.state));
    }
    return {};
}

Status guarded_complete(Runtime& runtime, std::vector<Creation>& creations) noexcept {
    const ReentryGuard guard;
    try {
        return complete(runtime, creations);
    } catch (const std::exception& error) {
        return {Code::kInternalError, std::string("communicator creation: ") + error.what()};
    }
}

// Gives up slimwire's part.
void undo(Runtime& runtime, Creation* creation, const Status& status) {
    if (creation->state == nullptr) {
        return;
    }
    const ncclComm_t exchange = __atomic_load_n(&creation->state->exchange_comm, __ATOMIC_ACQUIRE);
    if (exchange != nullptr) {
        (void)creation->nccl->CommAbort(exchange);
    }
    if (runtime.device().ok()) {
        drop_reserve(runtime.api(), creation->state.get());
    }
    if (creation->state->stats) {
        creation->state->stats->agreement = "error: " + status.message();
        runtime.reporter().retire(creation->state->stats);
    }
    creation->state = nullptr;  // where NCCL stores handles late is a Split's
}

// What `comm` says once NCCL is not busy with it; an error when the creation is given up.
ncclResult_t settled(const RealNccl& nccl, PendingCreation& pending, ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (Backoff backoff; state == ncclInProgress; backoff.pause()) {
        const std::lock_guard touching(pending.touching);
        if (pending.cancelled || comm == nullptr ||
            nccl.CommGetAsyncError(comm, &state) != ncclSuccess) {
            return ncclInternalError;
        }
    }
    return state;
}

// Waits for NCCL's own part. Creations that NCCL failed, or that this rank is not in, are done with
// and taken out.
void await_native(std::vector<Creation>* creations) {
    std::erase_if(*creations, [&](const Creation& creation) {
        PendingCreation& pending = *creation.pending;
        // A split's handle may not be there before the parent says that it is done; one that does
        // not block like its parent is busy by itself. An error of the parent says nothing: the
        // survivors of a lost rank shrink it.
        if (creation.parent != nullptr) {
            (void)settled(*creation.nccl, pending, creation.parent);
        }
        if (pending.comm == nullptr && !pending.cancelled) {
            pending.comm = __atomic_load_n(pending.out, __ATOMIC_ACQUIRE);
        }
        if (settled(*creation.nccl, pending, pending.comm) != ncclSuccess) {
            PendingCreationTable::instance().finish(creation.pending, {});
            return true;
        }
        pending.native_done = true;
        return false;
    });
}

// Makes a device of `creations` the thread's own before its first CUDA call: CUDA would make a
// context on device 0, with which every thread begins.
void take_device(Runtime& runtime, const std::vector<Creation>& creations) {
    int device = 0;
    if (!creations.empty() && runtime.device().ok() &&
        creations.front().nccl->CommCuDevice(creations.front().pending->comm, &device) ==
            ncclSuccess) {
        tolerate(runtime.api(), runtime.api().set_device(device));
    }
}

void progress(Runtime& runtime, std::vector<Creation> creations) {
    const ReentryGuard guard;
    await_native(&creations);
    take_device(runtime, creations);
    const Status status = guarded_complete(runtime, creations);
    if (!status.ok() && !creations.empty() && !creations.front().pending->cancelled) {
        log_line(LogLevel::kError, status.message());
    }
    for (Creation& creation : creations) {
        // The program hears of a failure before the private communicator's end, which may take NCCL
        // a while when a rank is gone.
        PendingCreationTable::instance().finish(creation.pending, status);
        if (!status.ok()) {
            undo(runtime, &creation, status);
        }
    }
}

void say_native(Runtime& runtime,
                const RealNccl& nccl,
                const AgreementAddress& address,
                int ranks,
                int rank) noexcept {
    try {
        Hello hello;
        hello.ranks = ranks;
        hello.rank = rank;
        hello.native_reason = why_not_here(runtime, nccl);
        AgreementClient client;
        if (Status sent = client.send(address, hello, runtime.config.settings.agree_timeout_us);
            !sent.ok()) {
            log_line(LogLevel::kWarn, sent.message());
        }
    } catch (const std::exception& error) {
        log_line(LogLevel::kWarn, std::string("agreement: ") + error.what());
    }
}

// Of communicators that grow and that the program may go on with meanwhile.
void begin_sharing_now(Runtime& runtime, std::vector<Creation>& creations) noexcept {
    const ReentryGuard guard;
    std::vector<Creation*> grown;
    for (Creation& creation : creations) {
        if (creation.kind == Creation::Kind::kGrown && !busy(*creation.nccl, creation.parent)) {
            grown.push_back(&creation);
        }
    }
    begin_sharing(runtime, grown);
}

void put_under_way(Creation* creation, bool background) {
    creation->pending = std::make_shared<PendingCreation>();
    PendingCreation& pending = *creation->pending;
    pending.out = creation->out;
    pending.comm = __atomic_load_n(creation->out, __ATOMIC_ACQUIRE);
    pending.parent =
        background && busy(*creation->nccl, creation->parent) ? creation->parent : nullptr;
    pending.native_done = !background;
    PendingCreationTable::instance().add(creation->pending);
}

}  // namespace

ncclResult_t complete_or_undo(Runtime& runtime, std::vector<Creation>& creations) noexcept {
    for (Creation& creation : creations) {
        put_under_way(&creation, false);
    }
    const Status status = guarded_complete(runtime, creations);
    for (Creation& creation : creations) {
        if (!status.ok()) {
            const ReentryGuard guard;
            if (creation.pending->cancelled) {  // an abort waits for that
                PendingCreationTable::instance().finish(creation.pending, {});
            }
            undo(runtime, &creation, status);
            if (!creation.pending->cancelled) {
                (void)creation.nccl->CommAbort(creation.pending->comm);
                runtime.libraries.forget(creation.pending->comm);
            }
            *creation.out = nullptr;
        }
        PendingCreationTable::instance().finish(creation.pending, {});
    }
    return status.ok() ? ncclSuccess : runtime.fail(status);
}

ncclResult_t complete_in_background(Runtime& runtime, std::vector<Creation> creations) noexcept {
    begin_sharing_now(runtime, creations);
    std::vector<PendingCreationRef> started;
    for (Creation& creation : creations) {
        put_under_way(&creation, true);
        started.push_back(creation.pending);
    }
    auto shared = std::make_shared<std::vector<Creation>>(std::move(creations));
    Status status = start_detached([&runtime, shared] { progress(runtime, std::move(*shared)); });
    if (status.ok()) {
        return ncclSuccess;
    }
    for (const PendingCreationRef& creation : started) {
        PendingCreationTable::instance().finish(creation, status);
    }
    return runtime.fail(status);
}

void opt_out(Runtime& runtime, const Creation& creation, bool wait) noexcept {
    AgreementAddress address;
    if (creation.kind != Creation::Kind::kUniqueId ||
        read_id_tail(creation.id, &address) != TailState::kPresent) {
        return;
    }
    const RealNccl& nccl = *creation.nccl;
    const int ranks = creation.ranks, rank = creation.rank;
    if (wait) {
        say_native(runtime, nccl, address, ranks, rank);
        return;
    }
    if (const Status started = start_detached(
            [=, &runtime, &nccl] { say_native(runtime, nccl, address, ranks, rank); });
        !started.ok()) {
        log_line(LogLevel::kWarn, started.message());
    }
}

}  // namespace slimwire
