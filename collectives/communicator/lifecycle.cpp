#include "collectives/communicator/lifecycle.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/hash.h"
#include "collectives/call/log.h"
#include "collectives/call/nccl_types.h"
#include "collectives/call/per_thread.h"
#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/communicator/creation.h"

namespace slimwire {
namespace {

std::vector<Creation>& group_creations() noexcept {
    return per_thread<std::vector<Creation>>();
}

// After the real calls, or the real end of their group, returned `result`.
ncclResult_t finish_creations(Runtime& runtime,
                              ncclResult_t result,
                              std::vector<Creation> creations) noexcept {
    const bool parent_busy =
        std::any_of(creations.begin(), creations.end(),
                    [](const Creation& made) { return busy(*made.nccl, made.parent); });
    if (result == ncclInProgress || parent_busy) {
        return complete_in_background(runtime, std::move(creations));
    }
    // A split without color makes none.
    std::erase_if(creations, [](const Creation& creation) { return *creation.out == nullptr; });
    return creations.empty() ? ncclSuccess : complete_or_undo(runtime, creations);
}

// Of a communicator whose ranks are all in this process.
std::optional<AgreementAddress> own_server(const Runtime& runtime) noexcept {
    try {
        const Result<AgreementAddress> address =
            open_agreement(runtime.config.settings.agree_timeout_us, {}, {}, false);
        return address.ok() ? std::optional(address.value()) : std::nullopt;
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

// Streams that wait for other ranks' claims go on.
void end_claims(Communicator* state) {
    if (state->claims != nullptr) {
        state->claims->end();
    }
}

// A handle that is not there yet is seen at its first call.
void observe_created(Runtime& runtime, const std::vector<Creation>& creations) noexcept {
    for (const Creation& creation : creations) {
        runtime.listener->adopt(*creation.nccl, __atomic_load_n(creation.out, __ATOMIC_ACQUIRE),
                                creation.observed_key, creation.configured.name);
    }
}

ncclResult_t created(Runtime& runtime,
                     const RealNccl& nccl,
                     ncclResult_t result,
                     std::vector<Creation> creations) noexcept {
    if (result != ncclSuccess && result != ncclInProgress) {
        return result;
    }
    for (Creation& creation : creations) {
        creation.nccl = &nccl;
        runtime.libraries.record(__atomic_load_n(creation.out, __ATOMIC_ACQUIRE), &nccl);
    }
    if (!runtime.engaged()) {
        for (const Creation& creation : creations) {
            opt_out(runtime, creation, result != ncclInProgress);
        }
        if (!runtime.config_status.ok()) {  // in a mode that may not make the job fail
            log_once(LogLevel::kError, "observing",
                     runtime.config_status.message() + "; SLIMWIRE_MODE=" +
                         mode_name(runtime.config.settings.mode) + " observes nothing");
        }
    }
    if (runtime.listener->in_group() && (runtime.engaged() || runtime.listener->observes())) {
        std::move(creations.begin(), creations.end(), std::back_inserter(group_creations()));
        return result;
    }
    if (!runtime.engaged()) {
        if (runtime.listener->observes()) {
            observe_created(runtime, creations);
        }
        return result;
    }
    const ncclResult_t completed = finish_creations(runtime, result, std::move(creations));
    return completed == ncclSuccess ? result : completed;
}

}  // namespace

void unique_id_made(Runtime& runtime, ncclUniqueId* id) noexcept {
    // With NCCL_COMM_ID every rank makes the id by itself, so it cannot carry one server's address:
    // such communicators stay native.
    const char* fixed = getenv("NCCL_COMM_ID");
    if (!runtime.engaged() || (fixed != nullptr && *fixed != 0)) {
        return;
    }
    try {
        const Result<AgreementAddress> address = open_agreement(
            runtime.config.settings.agree_timeout_us, *id, runtime.config.settings.socket_ifname);
        if (!address.ok()) {
            log_line(LogLevel::kWarn, address.status().message());
        } else if (!write_id_tail(address.value(), id)) {
            log_line(LogLevel::kWarn,
                     "the tail of the unique id is in use by this NCCL; communicators stay native");
        }
    } catch (const std::exception& error) {
        log_line(LogLevel::kWarn, std::string("agreement: ") + error.what());
    }
}

ncclResult_t rank_created(Runtime& runtime,
                          const RealNccl& nccl,
                          ncclResult_t result,
                          ncclComm_t* comm,
                          int ranks,
                          int rank,
                          const ncclUniqueId& id,
                          const ncclConfig_t* config) noexcept {
    std::vector<Creation> creations(1);
    Creation& creation = creations.front();
    creation.configured = configured_by(config, {});
    creation.kind = Creation::Kind::kUniqueId;
    creation.out = comm;
    creation.ranks = ranks;
    creation.rank = rank;
    creation.id = id;
    creation.observed_key = stable_hash(std::string_view(id.internal, sizeof(id.internal)));
    return created(runtime, nccl, result, std::move(creations));
}

ncclResult_t all_created(Runtime& runtime,
                         const RealNccl& nccl,
                         ncclResult_t result,
                         ncclComm_t* comms,
                         int ranks) noexcept {
    std::vector<Creation> creations;
    // For types of calls and who is in a part; without it as where it is out of reach.
    const bool made = result == ncclSuccess && runtime.engaged() && ranks > 1;
    const std::optional<AgreementAddress> server = made ? own_server(runtime) : std::nullopt;
    for (int rank = 0; rank < ranks; ++rank) {
        Creation& creation = creations.emplace_back();
        creation.kind = Creation::Kind::kInitAll;
        creation.configured = configured_by(nullptr, {});
        creation.out = comms + rank;
        creation.server = server;
        creation.ranks = ranks;
        creation.rank = rank;
    }
    return created(runtime, nccl, result, std::move(creations));
}

ncclResult_t await_parent(Runtime& runtime, ncclComm_t parent) noexcept {
    const ncclResult_t made = await_creation(runtime, parent);
    const Communicator* from = made == ncclSuccess ? runtime.comms.find(parent) : nullptr;
    return from != nullptr && from->missed.split
               ? runtime.fail({Code::kSystemError,
                               "a split that slimwire asked for never ended on some rank, so this "
                               "communicator cannot be split, shrunk or grown; with "
                               "SLIMWIRE_MODE=off slimwire asks for none"})
               : made;
}

PartBegun split_begins(Runtime& runtime, ncclComm_t parent, int color, int key) noexcept {
    PartBegun part{runtime.listener->key_of_part(parent, color)};
    Communicator* from = runtime.comms.find(parent);
    if (from != nullptr && from->claims != nullptr && !from->members.empty()) {
        part.number = from->claims->splits(color, key);
    }
    return part;
}

PartBegun shrink_begins(Runtime& runtime,
                        ncclComm_t parent,
                        std::span<const int> excluded) noexcept {
    return {runtime.listener->key_of_part(parent, NCCL_SPLIT_NOCOLOR), 0, excluded};
}

namespace {

// Of a communicator that is `made`, in a word, of `parent`; native where that is or is not known.
// Else the rest is the caller's.
Creation creation_of(const Communicator* from,
                     ncclComm_t parent,
                     ncclComm_t* comm,
                     const ncclConfig_t* config,
                     Creation::Kind kind,
                     const std::string& made) {
    Creation creation;
    // It has the parent's configuration, and so its name, unless it gets one.
    creation.configured = configured_by(config, from != nullptr ? from->configured : Configured());
    creation.out = comm;
    creation.parent = parent;
    creation.kind = from != nullptr && from->agreed ? kind : Creation::Kind::kNative;
    creation.reason = from == nullptr
                          ? made + " a communicator slimwire does not know"
                          : made + " a native communicator: " + from->shape.native_reason;
    return creation;
}

}  // namespace

ncclResult_t part_created(Runtime& runtime,
                          const RealNccl& nccl,
                          ncclResult_t result,
                          ncclComm_t parent,
                          ncclComm_t* comm,
                          const PartBegun& part,
                          const ncclConfig_t* config) noexcept {
    const Communicator* from = runtime.comms.find(parent);
    std::vector<Creation> creations;
    creations.push_back(creation_of(from, parent, comm, config, Creation::Kind::kSplit, "made of"));
    Creation& creation = creations.front();
    creation.observed_key = part.observed_key;
    if (creation.kind == Creation::Kind::kSplit) {
        creation.parent_key = from->comm_key;
        for (size_t rank = 0; rank < from->members.size(); ++rank) {
            if (std::find(part.excluded.begin(), part.excluded.end(), static_cast<int>(rank)) ==
                part.excluded.end()) {
                creation.parent_members.push_back(from->members[rank]);
            }
        }
        creation.parent_claims = from->claims;
        creation.part = part.number;
        creation.parent_costs = from->shape.costs;
        if (from->claims != nullptr) {
            creation.server = from->claims->server();
        }
    }
    return created(runtime, nccl, result, std::move(creations));
}

ncclResult_t grown(Runtime& runtime,
                   const RealNccl& nccl,
                   ncclResult_t result,
                   ncclComm_t parent,
                   ncclComm_t* comm,
                   const ncclUniqueId* id,
                   const ncclConfig_t* config) noexcept {
    std::vector<Creation> creations;
    creations.push_back(creation_of(runtime.comms.find(parent), parent, comm, config,
                                    Creation::Kind::kGrown, "grown from"));
    if (id != nullptr) {
        creations.front().id = *id;
    }
    return created(runtime, nccl, result, std::move(creations));
}

void grow_id_made(Runtime& runtime, ncclComm_t comm, ncclUniqueId* id) noexcept {
    if (const Communicator* from = runtime.comms.find(comm); from != nullptr && from->agreed) {
        unique_id_made(runtime, id);
    }
}

namespace {

// Takes out what the thread's group of `nccl` is to make.
std::vector<Creation> take_group_creations(const RealNccl& nccl) noexcept {
    std::vector<Creation>& all = group_creations();
    const auto taken = std::stable_partition(
        all.begin(), all.end(), [&](const Creation& creation) { return creation.nccl != &nccl; });
    std::vector<Creation> creations(std::make_move_iterator(taken),
                                    std::make_move_iterator(all.end()));
    all.erase(taken, all.end());
    return creations;
}

}  // namespace

ncclResult_t finish_group_creations(Runtime& runtime,
                                    const RealNccl& nccl,
                                    ncclResult_t result) noexcept {
    std::vector<Creation> creations = take_group_creations(nccl);
    if (creations.empty() || (result != ncclSuccess && result != ncclInProgress)) {
        return ncclSuccess;
    }
    if (runtime.listener->observes()) {
        observe_created(runtime, creations);
        return ncclSuccess;
    }
    return finish_creations(runtime, result, std::move(creations));
}

void drop_group_creations(const RealNccl& nccl) noexcept {
    (void)take_group_creations(nccl);
}

ncclResult_t await_creation(Runtime& runtime, ncclComm_t comm) noexcept {
    PendingCreationTable& table = PendingCreationTable::instance();
    const PendingCreationRef creation = table.find(comm);
    if (creation == nullptr) {
        return ncclSuccess;
    }
    if (!creation->native_done) {
        return runtime.fail({Code::kInvalidArgument,
                             "a communicator is used before ncclCommGetAsyncError said that its "
                             "creation, or the split of it, is done"});
    }
    constexpr uint64_t kLookUs = 1000000;
    while (!table.wait(creation, kLookUs)) {
    }
    const std::optional<ncclResult_t> state = creation_state(comm);
    return state.has_value() && *state != ncclInProgress ? *state : ncclSuccess;
}

std::optional<ncclResult_t> creation_state(ncclComm_t comm) noexcept {
    PendingCreationTable& table = PendingCreationTable::instance();
    const PendingCreationRef creation = table.find(comm);
    if (creation == nullptr) {
        return std::nullopt;
    }
    Status failure;
    if (!table.finished(creation, &failure)) {
        return ncclInProgress;
    }
    if (failure.ok()) {
        return std::nullopt;
    }
    Runtime::last_error() = "slimwire: " + failure.message();
    return nccl_result_of(failure.code());
}

ncclResult_t exchange_state(Runtime& runtime, ncclComm_t comm) noexcept {
    Communicator* state = runtime.comms.find(comm);
    ncclResult_t result = ncclSuccess;
    if (state != nullptr && runtime.listener->observes()) {
        runtime.listener->adopt(*state->nccl, comm, 0, {});
    } else if (state != nullptr && state->claims != nullptr && state->claims->failed()) {
        Runtime::last_error() = "slimwire: " + state->claims->error();
        result = ncclInvalidUsage;
    } else if (state != nullptr) {
        const std::lock_guard lock(state->exchange_mutex);
        if (state->exchange_comm != nullptr && !state->ended &&
            state->nccl->CommGetAsyncError(state->exchange_comm, &result) != ncclSuccess) {
            result = ncclSuccess;
        }
    }
    return result;
}

void comm_finalizing(Runtime& runtime, ncclComm_t comm) noexcept {
    Communicator* state = runtime.comms.find(comm);
    if (state != nullptr && state->exchange_comm != nullptr &&
        state->nccl->CommFinalize != nullptr) {
        const ReentryGuard guard;
        (void)state->nccl->CommFinalize(state->exchange_comm);
    }
}

Beside comm_revoking(Runtime& runtime, ncclComm_t comm, int flags) noexcept {
    PendingCreationTable& table = PendingCreationTable::instance();
    if (const PendingCreationRef creation = table.find(comm); creation != nullptr) {
        table.cancel(creation);  // nobody will use it
    }
    Communicator* state = runtime.comms.find(comm);
    if (state == nullptr || flags != NCCL_REVOKE_DEFAULT) {
        return {};
    }
    end_claims(state);
    state->revoked = true;
    return state->exchange_comm != nullptr && state->nccl->CommRevoke != nullptr
               ? ask_beside(runtime, *state,
                            [nccl = state->nccl, exchange = state->exchange_comm, flags] {
                                return nccl->CommRevoke(exchange, flags);
                            })
               : Beside();
}

namespace {

bool went(ncclResult_t result) noexcept {
    return result == ncclSuccess || result == ncclInProgress;
}

// With a private communicator.
Communicator* compressing(Runtime& runtime, ncclComm_t comm) noexcept {
    Communicator* state = runtime.comms.find(comm);
    return state != nullptr && state->exchange_comm != nullptr ? state : nullptr;
}

}  // namespace

ncclResult_t comm_suspended(Runtime& runtime, ncclComm_t comm, int flags) noexcept {
    const ReentryGuard guard;
    Communicator* state = compressing(runtime, comm);
    const ncclResult_t result =
        state != nullptr ? state->nccl->CommSuspend(state->exchange_comm, flags) : ncclSuccess;
    if (state != nullptr && went(result) && (flags & NCCL_SUSPEND_MEM) != 0) {
        suspend_memory(runtime.api(), state, runtime.config.settings.free_suspended);
    }
    return result;
}

ncclResult_t comm_resuming(Runtime& runtime, ncclComm_t comm) noexcept {
    const ReentryGuard guard;
    Communicator* state = compressing(runtime, comm);
    const Status status = state != nullptr ? resume_memory(runtime.api(), state) : Status();
    return status.ok() ? ncclSuccess : runtime.fail(status);
}

ncclResult_t comm_resumed(Runtime& runtime, ncclComm_t comm) noexcept {
    const ReentryGuard guard;
    Communicator* state = compressing(runtime, comm);
    if (state == nullptr) {
        return ncclSuccess;
    }
    const ncclResult_t result = state->nccl->CommResume(state->exchange_comm);
    state->objects.suspended.now &= !went(result);
    return result;
}

namespace {

Beside abort_beside(Runtime& runtime, const Communicator& state, ncclComm_t exchange) noexcept {
    return exchange == nullptr ? Beside()
                               : ask_beside(runtime, state, [nccl = state.nccl, exchange] {
                                     return nccl->CommAbort(exchange);
                                 });
}

}  // namespace

Beside comm_shrinking(Runtime& runtime, ncclComm_t comm, int flags) noexcept {
    Communicator* state = runtime.comms.find(comm);
    if (state == nullptr || (flags & NCCL_SHRINK_ABORT) == 0) {
        return {};
    }
    end_claims(state);
    ncclComm_t exchange = nullptr;
    {
        const std::lock_guard lock(state->exchange_mutex);
        state->revoked = true;
        exchange = std::exchange(state->exchange_comm, nullptr);
    }
    return abort_beside(runtime, *state, exchange);
}

namespace {

// Ends what is not finished of the creation. False: NCCL will refuse to end the communicator now.
bool end_creation(Runtime& runtime, ncclComm_t comm, bool abort) noexcept {
    PendingCreationTable& table = PendingCreationTable::instance();
    for (PendingCreationRef creation = table.find(comm); creation != nullptr;
         creation = table.find(comm)) {
        if (abort || await_creation(runtime, comm) != ncclSuccess) {
            if (!abort && !creation->native_done) {
                return false;
            }
            table.cancel(creation);
        }
    }
    return true;
}

// Ends the private communicator with the program's. One that NCCL is still busy with is waited for
// a moment.
void end_exchange(const RealNccl& nccl, ncclComm_t exchange) noexcept {
    constexpr int kLooks = 5000;
    for (int look = 0; look < kLooks && busy(nccl, exchange); ++look) {
        usleep(1000);
    }
    if (nccl.CommDestroy(exchange) == ncclInvalidArgument) {
        (void)nccl.CommAbort(exchange);
    }
}

// Frees what was retired and is no longer in use, with what graphs have left, and gives the devices
// back what is free.
void collect_memory(Runtime& runtime) noexcept {
    const DeviceApi& api = runtime.api();
    runtime.device_memory.collect(api);  // may give up the last hold of a reserve
    runtime.graph_memory.free_returned(api, -1);
    runtime.device_memory.collect(api);
}

// Frees what calls used on the device, each once its last use has ended.
void release_memory(Runtime& runtime, Communicator* state) noexcept {
    const DeviceApi& api = runtime.api();
    const DeviceScope device(api, state->device);
    {
        Retirement left(&runtime.device_memory, api, state->device);
        runtime.listener->release(state, &left);
        release_device_objects(api, state, &left);
    }
    runtime.graph_memory.free_returned(api, state->device);
}

// Frees what is left of aborted communicators once no other thread is in a call; the own one may
// have queued such calls.
void free_aborted(Runtime& runtime) noexcept {
    if (runtime.listener->in_group()) {
        return;
    }
    for (const CommRegistry::Aborted& aborted : runtime.comms.take_retired()) {
        if (!aborted.released) {  // its call had the device's objects
            release_memory(runtime, aborted.state.get());
        }
        runtime.listener->ended(aborted.state.get(), true);  // also what such a call had
    }
}

}  // namespace

Beside comm_ending(Runtime& runtime, ncclComm_t comm, bool abort) noexcept {
    if (!end_creation(runtime, comm, abort)) {
        return {};
    }
    const Communicator* known = runtime.comms.find(comm);
    if (!abort && known != nullptr && busy(*known->nccl, comm)) {
        return {};  // NCCL refuses to destroy it now
    }
    runtime.libraries.forget(comm);
    std::unique_ptr<Communicator> state = runtime.comms.remove(comm);
    if (!state) {
        return {};
    }
    const ReentryGuard guard;
    {
        const std::lock_guard lock(state->exchange_mutex);
        state->ended = true;
    }
    end_claims(state.get());
    runtime.listener->ending(state.get(), abort);
    Beside beside = abort ? abort_beside(runtime, *state, state->exchange_comm) : Beside();
    const bool has_memory = runtime.device().ok() && state->shape.go;
    // Of one that is aborted another thread may have found it and be about to use what it has; any
    // one a thread may be saving.
    const bool used = state->users != 0;
    const bool release = has_memory && !used && (!abort || CommUse::by_no_other());
    if (release) {
        release_memory(runtime, state.get());
    }
    runtime.listener->ended(state.get(), abort);
    if (state->exchange_comm != nullptr && !abort) {
        end_exchange(*state->nccl, state->exchange_comm);
    }
    free_aborted(runtime);
    if (runtime.engaged() && runtime.device().ok()) {
        collect_memory(runtime);
    }
    runtime.reporter().retire(state->stats);
    if (abort || used) {
        runtime.comms.retire({std::move(state), release || !has_memory});
    }
    return beside;
}

void comm_aborted(Runtime& runtime, const Beside& beside) noexcept {
    await(beside);
    const ReentryGuard guard;
    free_aborted(runtime);
    if ((runtime.engaged() || runtime.listener->observes()) && runtime.device().ok()) {
        collect_memory(runtime);
    }
}

}  // namespace slimwire
