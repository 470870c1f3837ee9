#include "collectives/dispatch/dispatch.h"

#include <algorithm>
#include <utility>

#include "collectives/call/training.h"
#include "collectives/communicator/lifecycle.h"
#include "collectives/dispatch/call_pairs.h"
#include "collectives/dispatch/call_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/executor.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/ring/state_ring.h"
#include "collectives/dispatch/shadow/observer.h"
#include "collectives/dispatch/thread_group.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/identity/tensor_names.h"

namespace slimwire {
namespace {

// Has the results copied that are wanted of a communicator's calls launched by now.
Status read_results(const Runtime& runtime, Session* state) {
    Status status;
    if (state->tracker != nullptr && state->tracker->waits_for_launch()) {
        status = state->tracker->launched(runtime.api(), *state);
    }
    if (status.ok() && state->rows != nullptr && state->rows->waits_for_launch()) {
        status = state->rows->launched(runtime.api(), state);
    }
    return status.ok() ? status
                       : Status{status.code(), log_prefix(*state) + ": " + status.message()};
}

void undo_hearing(Communicator* state, uint64_t, uint64_t) noexcept {
    session(state).tracker->group_ends(false);
}

// What a call carries, on a communicator that asks for it.
Result<uint32_t> listen(const Runtime& runtime, const CollectiveCall& call, Session* state) {
    if (call.signature.count == 0 || is_point_to_point(call.signature.op)) {
        return 0u;  // not a call that all ranks make
    }
    SLIMWIRE_TRY_ASSIGN(const std::optional<FallbackReason> refused,
                        malformed(runtime.api(), call, *state));
    if (refused.has_value()) {
        return 0u;
    }
    if (in_group()) {
        UndoJournal& journal = thread_group().journal;
        if (!journal.has(state, undo_hearing)) {
            state->tracker->group_begins();
            journal.add(state, undo_hearing);
        }
    } else {
        state->tracker->group_begins();  // of one call, until end_alone()
    }
    return state->tracker->next(runtime.api(), *state, call);
}

// A call outside groups, of a communicator with contents or rows, was made and returned `result`.
ncclResult_t end_alone(Runtime& runtime, Session* state, ncclResult_t result) {
    const bool ran = result == ncclSuccess || result == ncclInProgress;
    if (state->tracker != nullptr) {
        state->tracker->group_ends(ran);
    }
    if (state->rows != nullptr && !ran) {
        state->rows->forget();
    }
    const Status status = ran ? read_results(runtime, state) : Status();
    return status.ok() ? result : runtime.fail(status);
}

ncclResult_t failed(Runtime& runtime,
                    const Session& state,
                    const Status& status,
                    const char* name = nullptr) {
    return runtime.fail({status.code(), log_prefix(state, name) + ": " + status.message()});
}

std::optional<ncclResult_t> dispatch_known(Runtime& runtime,
                                           const CollectiveCall& call,
                                           Session* state);

std::optional<ncclResult_t> dispatch_impl(Runtime& runtime, const CollectiveCall& call) {
    Session* state = session_of(runtime, call.comm);
    if (state == nullptr) {
        if (const ncclResult_t creation = await_creation(runtime, call.comm);
            creation != ncclSuccess) {
            return creation;
        }
        state = session_of(runtime, call.comm);
    }
    if (state == nullptr || state->revoked || state->objects.suspended.now) {
        return std::nullopt;
    }
    if (state->claims != nullptr && state->claims->failed()) {
        Runtime::last_error() = "slimwire: " + state->claims->error();
        return ncclInvalidUsage;  // logged once
    }
    if (state->tracker == nullptr) {
        return dispatch_known(runtime, call, state);
    }
    const Result<uint32_t> ranges_id = listen(runtime, call, state);
    if (!ranges_id.ok()) {
        return failed(runtime, *state, ranges_id.status());
    }
    CollectiveCall known = call;
    known.signature.ranges_id = ranges_id.value();
    const std::optional<ncclResult_t> taken = dispatch_known(runtime, known, state);
    return taken.has_value() && !in_group() ? end_alone(runtime, state, *taken) : taken;
}

std::optional<ncclResult_t> dispatch_planned(Runtime& runtime,
                                             const CollectiveCall& call,
                                             Session* state,
                                             PlanEntry* entry,
                                             AskedPlace place);

std::optional<ncclResult_t> dispatch_known(Runtime& runtime,
                                           const CollectiveCall& call,
                                           Session* state) {
    state->models.hear(call.signature);
    if (state->rows != nullptr && is_point_to_point(call.signature.op)) {
        if (Status heard = hear_message(runtime, call, state); !heard.ok()) {
            return runtime.fail({heard.code(), log_prefix(*state) + ": " + heard.message()});
        }
    }
    if (state->recalls && !is_point_to_point(call.signature.op)) {
        // Before its place is asked for.
        if (const Status known = dispatch_state(runtime).ring->recall(state); !known.ok()) {
            return failed(runtime, *state, known);
        }
    }
    PlanEntry* entry = plan_of(runtime, state, call.signature, none_queued());
    if (entry == nullptr || !entry->plan->asks_place()) {
        return dispatch_planned(runtime, call, state, entry, {});
    }
    CollectiveCall placed = call;
    AskedPlace place;
    if (Status found = find_placed_plan(runtime, state, &placed, &entry, &place); !found.ok()) {
        return failed(runtime, *state, found);
    }
    return dispatch_planned(runtime, placed, state, entry, place);
}

Status follow(Runtime& runtime, const CallSite& site, Session* state, const PlanEntry* entry) {
    const bool first = !std::exchange(state->followed, true);
    for (CallHook* hook : state->following) {
        if (first && !state->progress.waiting.empty()) {
            hook->resume(site, state->models.count(), [&](const CallSignature& signature) {
                return plan_of(runtime, state, signature, false);
            });
        }
        SLIMWIRE_TRY(hook->follow(site, entry));
    }
    return {};
}

// Behind calls that hooks follow. What NCCL launches later has no result on the stream yet.
Status end_following(Runtime& runtime, Session* state, bool launched) {
    Status status;
    for (CallHook* hook : state->following) {
        if (launched && status.ok()) {
            status = hook->launched(runtime.api(), state, &dispatch_state(runtime).residuals);
        } else {
            hook->forget();
        }
    }
    return status;
}

QueuedCall own_call(const CollectiveCall& call,
                    Session* state,
                    const Plan* plan,
                    const StepPosition& place,
                    CallHook* hook) {
    QueuedCall own{call, state, plan, place, {}};
    own.hook = hook;
    return own;
}

// What hooks want beside a native call; in front of it where it is alone, which is not made yet.
Status run_beside(Runtime& runtime, const CallSite& site, Session* state) {
    for (CallHook* hook : state->following) {
        const Plan* const own = hook->call_behind(site, nullptr);
        if (own == nullptr) {
            continue;
        }
        const QueuedCall item = own_call(site.call, state, own, site.place, hook);
        if (in_group()) {
            thread_group().queued.push_back(item);
        } else {
            const ReentryGuard guard;
            SLIMWIRE_TRY(run_alone(runtime, item));
        }
    }
    return {};
}

// The call, which has been counted, is the caller's to forward.
std::optional<ncclResult_t> go_native(Runtime& runtime,
                                      const CollectiveCall& call,
                                      Session* state,
                                      PlanEntry* entry,
                                      const StepPosition& place) {
    if (entry != nullptr && !entry->claimed[0]) {
        claim_type(runtime, call, state, entry, false);
    }
    if (in_group()) {
        note_native(call, state);
    }
    if (state->following.empty()) {
        return std::nullopt;
    }
    const CallSite site = site_of(runtime, call, state, place);
    Status status = follow(runtime, site, state, nullptr);
    status = status.ok() ? run_beside(runtime, site, state) : status;
    return status.ok() ? std::nullopt : std::optional(failed(runtime, *state, status));
}

// The variant that a call takes, or the plan itself.
Status choose(const CallSite& site, const PlanEntry& entry, QueuedCall* item) {
    for (Controller* controller : entry.controllers) {
        SLIMWIRE_TRY_ASSIGN(Choice choice, controller->choose(site));
        if (choice.variant != nullptr || choice.tensor != nullptr) {
            item->plan = choice.variant != nullptr ? choice.variant.get() : item->plan;
            item->choice = std::move(choice);
            item->controller = controller;
        }
    }
    item->stats = entry.stats_of(*item->plan);
    return {};
}

// Runs a call of the plan, or queues it, and what hooks want behind it.
Status take(Runtime& runtime,
            const CallSite& site,
            const PlanEntry& entry,
            const QueuedCall& item) {
    Session& state = *item.state;
    SLIMWIRE_TRY(follow(runtime, site, &state, &entry));
    std::vector<QueuedCall> behind;
    for (const std::unique_ptr<CallHook>& hook : state.hooks) {
        if (const Plan* own = hook->call_behind(site, entry.plan.get())) {
            behind.push_back(own_call(item.call, &state, own, item.place, hook.get()));
            behind.back().keeper = &entry;
        }
    }
    if (in_group()) {
        std::vector<QueuedCall>& queue = thread_group().queued;
        queue.push_back(item);
        queue.insert(queue.end(), behind.begin(), behind.end());
        return {};
    }
    const ReentryGuard guard;
    Status status = run_alone(runtime, item);
    for (const QueuedCall& one : behind) {
        status = status.ok() ? run_alone(runtime, one) : status;
    }
    Status ended = end_following(runtime, &state, status.ok());
    return status.ok() ? ended : status;
}

std::optional<ncclResult_t> dispatch_planned(Runtime& runtime,
                                             const CollectiveCall& call,
                                             Session* state,
                                             PlanEntry* entry,
                                             AskedPlace place) {
    const char* const name = TensorNames::of(call);
    if (entry != nullptr) {
        entry->stats->count_name(name);
    }
    if (entry == nullptr || !entry->plan->compressed) {
        if (entry != nullptr) {
            count_native(*entry, *state);
        }
        const StepPosition at = place.asked ? place.place : follow_native(runtime, call, state);
        return go_native(runtime, call, state, entry, at);
    }
    const Result<std::optional<FallbackReason>> fallback =
        check_fallback(runtime, call, state, *entry, &place);
    if (!fallback.ok()) {
        return failed(runtime, *state, fallback.status(), name);
    }
    if (fallback.value().has_value()) {
        count_fallback(state, entry, *fallback.value());
        return go_native(runtime, call, state, entry, place.place);
    }
    QueuedCall item{call, state, entry->plan.get(), place.place, {}};
    item.pair = place.pair;
    const CallSite site = site_of(runtime, call, state, place.place);
    if (const Status chosen = choose(site, *entry, &item); !chosen.ok()) {
        return failed(runtime, *state, chosen, name);
    }
    if (!item.plan->compressed) {
        item.stats->count_call();
        return go_native(runtime, call, state, entry, place.place);
    }
    if (!entry->claimed[1]) {
        item.first = claim_type(runtime, call, state, entry, true);
    }
    if (call.signature.redop == RedOp::kPreMulSum) {
        item.scalar = *scalar_of(*state, call);
    }
    if (item.plan->pairs_calls) {
        note_pair(&item);
    }
    const Status taken = take(runtime, site, *entry, item);
    return taken.ok() ? ncclSuccess : failed(runtime, *state, taken, name);
}

// The real GroupEnd.
ncclResult_t end_real_group(Runtime& runtime, const ThreadGroup& group) {
    Observer* const observer = dispatch_state(runtime).observer.get();
    if (observer == nullptr) {
        return group.nccl->GroupEnd();
    }
    {
        const DataCall here(runtime);  // creations may wait
        observer->group_ending();
    }
    const uint64_t began_ns = steady_ns();
    const ncclResult_t result = group.nccl->GroupEnd();
    observer->group_ended(group.number, began_ns, result);
    return result;
}

// What NCCL launches later has no result yet.
void flags_are_made(const Runtime& runtime, Session* state, ncclResult_t result) noexcept {
    if (result == ncclSuccess) {
        state->skipped_steps->launched(runtime.api(), state->device);
    } else {
        state->skipped_steps->dropped();
    }
}

// What the calls of a group are to the communicators that followed them, once that was closed.
struct GroupEnding {
    std::vector<Communicator*> all;

    GroupEnding(const Runtime& runtime, ThreadGroup* group, ncclResult_t result) {
        all = group->journal.communicators();
        for (Communicator* state : group->journal.with(undo_hearing)) {
            session(state).tracker->group_ends(result == ncclSuccess || result == ncclInProgress);
        }
        for (Communicator* state : group->journal.with(undo_flags)) {
            flags_are_made(runtime, &session(state), result);
        }
        group->keep(result);
    }
};

// The group cannot run for want of room. Its native calls are the other ranks' business, too, and
// what they bring is read.
ncclResult_t end_without_queue(Runtime& runtime, ThreadGroup* group, const Status& why) {
    const ncclResult_t ended = group->nccl->GroupEnd();
    (void)finish_group_creations(runtime, *group->nccl, ended);
    const GroupEnding ending(runtime, group, ended);
    for (Communicator* state : ending.all) {
        (void)end_following(runtime, &session(state), false);
    }
    for (Communicator* state : ending.all) {
        // What fails here the next call on the communicator says.
        const bool ran = ended == ncclSuccess || ended == ncclInProgress;
        (void)(ran ? read_results(runtime, &session(state)) : Status());
    }
    return runtime.fail(why);
}

// The communicators of calls that are about to run whose plans may be dropped then.
std::vector<Session*> crowded_by(const std::vector<QueuedCall>& queue) {
    std::vector<Session*> out;
    for (const QueuedCall& item : queue) {
        if (item.state->plans.passing() >= kMaxPlans &&
            std::find(out.begin(), out.end(), item.state) == out.end()) {
            out.push_back(item.state);
        }
    }
    return out;
}

ncclResult_t group_end_impl(Runtime& runtime) {
    ThreadGroup& group = thread_group();
    const bool beside_native = group.has_native && !group.queued.empty();
    const GroupStreams several = several_streams(group);
    std::vector<QueuedCall> queue = std::move(group.queued);
    group.queued.clear();
    group.native_streams.clear();
    group.has_native = false;
    const ncclResult_t failed = std::exchange(group.failed, ncclSuccess);
    const ReentryGuard guard;
    if (failed != ncclSuccess) {
        const ncclResult_t ended = group.nccl->GroupEnd();
        (void)finish_group_creations(runtime, *group.nccl, ended);
        group.undo();
        return failed;
    }
    Status ready;
    {
        const DataCall here(runtime);
        ready = prepare_queue(runtime, queue, beside_native);
        ready = ready.ok() ? join_streams(runtime, several) : ready;
        if (ready.ok() && beside_native) {
            ready = fork_work_streams(runtime, queue);
        }
    }
    if (!ready.ok()) {
        return end_without_queue(runtime, &group, ready);
    }
    const ncclResult_t result = end_real_group(runtime, group);
    const ncclResult_t created = finish_group_creations(runtime, *group.nccl, result);
    if (result != ncclSuccess && result != ncclInProgress) {
        group.undo();
        return result;
    }
    const DataCall here(runtime);  // creations may wait
    const GroupEnding ending(runtime, &group, result);
    Status ran;
    if (created == ncclSuccess && !queue.empty()) {
        const std::string first = log_prefix(*queue.front().state);
        const std::vector<Session*> crowded = crowded_by(queue);
        ran = run_queue(runtime, std::move(queue), beside_native);
        ran = ran.ok() ? join_streams(runtime, several) : ran;
        ran = ran.ok() ? ran : Status{ran.code(), first + ": " + ran.message()};
        std::for_each(crowded.begin(), crowded.end(), drop_crowd);
    }
    for (Communicator* state : ending.all) {
        const bool launched = ran.ok() && created == ncclSuccess && result == ncclSuccess;
        const Status ended = end_following(runtime, &session(state), launched);
        if (ran.ok() && !ended.ok()) {
            ran = {ended.code(), log_prefix(*state) + ": " + ended.message()};
        }
    }
    if (created != ncclSuccess || !ran.ok()) {
        return created != ncclSuccess ? created : runtime.fail(ran);
    }
    for (Communicator* state : ending.all) {
        Status status = read_results(runtime, &session(state));
        if (!status.ok() && dispatch_state(runtime).observer != nullptr) {
            dispatch_state(runtime).observer->stop_hearing(&session(state), status);
        } else if (!status.ok()) {
            return runtime.fail(status);
        }
    }
    return result;
}

// A call of the program failed before the real NCCL saw it. In a group that drops the group, the
// real one too, as an error of NCCL's own would: its end returns the error.
void call_failed(ncclResult_t error) noexcept {
    if (in_group() && thread_group().failed == ncclSuccess) {
        thread_group().failed = error;
        // NCCL forgets a group once a call of it was refused; this one is.
        const ReentryGuard guard;
        (void)thread_group().nccl->AllReduce(nullptr, nullptr, 0, ncclUint8, ncclSum, nullptr,
                                             nullptr);
    }
}

}  // namespace

std::optional<ncclResult_t> dispatch(Runtime& runtime, const CollectiveCall& call) noexcept {
    std::optional<ncclResult_t> result;
    try {
        result = dispatch_impl(runtime, call);
    } catch (const std::exception& error) {
        result = runtime.fail({Code::kInternalError, std::string("dispatch: ") + error.what()});
    }
    if (result.has_value() && *result != ncclSuccess && *result != ncclInProgress) {
        call_failed(*result);
    }
    return result;
}

void flag_forwarded(const Runtime& runtime, Session* state, ncclResult_t result) noexcept {
    if (state->skipped_steps == nullptr || !state->skipped_steps->waits_for_launch() ||
        in_group()) {
        return;
    }
    const ReentryGuard guard;
    flags_are_made(runtime, state, result);
}

ncclResult_t call_forwarded(Runtime& runtime, ncclComm_t comm, ncclResult_t result) noexcept {
    Session* const state = !in_group() ? session_of(runtime, comm) : nullptr;
    if (state == nullptr) {
        return result;
    }
    flag_forwarded(runtime, state, result);
    if (!state->following.empty()) {
        const ReentryGuard guard;
        const Status status = end_following(runtime, state, result == ncclSuccess);
        if (!status.ok()) {
            return failed(runtime, *state, status);
        }
    }
    if (state->tracker == nullptr && (state->rows == nullptr || !state->rows->waits_for_launch())) {
        return result;
    }
    try {
        const ReentryGuard guard;
        return end_alone(runtime, state, result);
    } catch (const std::exception& error) {
        return runtime.fail({Code::kInternalError, std::string("results: ") + error.what()});
    }
}

Result<uint32_t> hear(Runtime& runtime, const CollectiveCall& call, Session* state) {
    const ReentryGuard guard;
    return listen(runtime, call, state);
}

Status heard(Runtime& runtime, Session* state, ncclResult_t result) {
    const ReentryGuard guard;
    const bool ran = result == ncclSuccess || result == ncclInProgress;
    state->tracker->group_ends(ran);
    return ran ? read_results(runtime, state) : Status();
}

ncclResult_t group_end(Runtime& runtime, const RealNccl& nccl) noexcept {
    if (!in_group()) {
        return nccl.GroupEnd();  // unbalanced: NCCL says so
    }
    --t_group_depth;
    if (in_group()) {
        return nccl.GroupEnd();
    }
    try {
        return group_end_impl(runtime);
    } catch (const std::exception& error) {
        return runtime.fail({Code::kInternalError, std::string("group end: ") + error.what()});
    }
}

}  // namespace slimwire
