#include "collectives/dispatch/dispatch.h"

#include <algorithm>
#include <utility>

#include "collectives/communicator/lifecycle.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/executor.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/shadow/observer.h"
#include "collectives/dispatch/thread_group.h"
#include "collectives/feedback/averaging.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/identity/tensor_names.h"

namespace slimwire {
namespace {

// Has the results copied that a communicator's contents want of calls launched by now.
Status read_results(const Runtime& runtime, Session* state) {
    if (!state->tracker->waits_for_launch()) {
        return {};
    }
    const Status status = state->tracker->launched(runtime.nccl, runtime.api(), *state);
    return status.ok() ? status
                       : Status{status.code(), log_prefix(*state) + ": " + status.message()};
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
        auto& heard = thread_group().heard;
        if (std::find(heard.begin(), heard.end(), state) == heard.end()) {
            state->tracker->group_begins();
            heard.push_back(state);
        }
    } else {
        state->tracker->group_begins();  // of one call, until end_alone()
    }
    return state->tracker->next(runtime.nccl, runtime.api(), *state, call);
}

// A call outside groups, of a communicator with contents, was made and returned `result`.
ncclResult_t end_alone(Runtime& runtime, Session* state, ncclResult_t result) {
    const bool ran = result == ncclSuccess || result == ncclInProgress;
    state->tracker->group_ends(ran);
    const Status status = ran ? read_results(runtime, state) : Status();
    return status.ok() ? result : runtime.fail(status);
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
    if (state == nullptr || state->revoked) {
        return std::nullopt;
    }
    if (state->tracker == nullptr) {
        return dispatch_known(runtime, call, state);
    }
    const Result<uint32_t> ranges_id = listen(runtime, call, state);
    if (!ranges_id.ok()) {
        return runtime.fail(
            {ranges_id.status().code(), log_prefix(*state) + ": " + ranges_id.status().message()});
    }
    CollectiveCall known = call;
    known.signature.ranges_id = ranges_id.value();
    const std::optional<ncclResult_t> taken = dispatch_known(runtime, known, state);
    return taken.has_value() && !in_group() ? end_alone(runtime, state, *taken) : taken;
}

std::optional<ncclResult_t> dispatch_planned(
    Runtime& runtime, const CollectiveCall& call, Session* state, Plan* plan, AskedPlace place);

std::optional<ncclResult_t> dispatch_known(Runtime& runtime,
                                           const CollectiveCall& call,
                                           Session* state) {
    state->models.hear(call.signature);
    Plan* plan = plan_of(runtime, state, call.signature, !in_group());
    if (plan == nullptr || plan->ordinals.empty()) {
        return dispatch_planned(runtime, call, state, plan, {});
    }
    CollectiveCall placed = call;
    AskedPlace place;
    if (Status found = find_placed_plan(runtime, state, &placed, &plan, &place); !found.ok()) {
        return runtime.fail({found.code(), log_prefix(*state) + ": " + found.message()});
    }
    return dispatch_planned(runtime, placed, state, plan, place);
}

// Counts a compressed call of a tensor whose residuals are averaged, and says whether they are now.
bool averages_now(Session* state, const Plan& plan, const StepPosition& place) {
    if (plan.averaging == nullptr) {
        return false;
    }
    CountedTensor& tensor = state->averaged[{&plan, place.slot, place.ordinal}];
    if (tensor.path != place.path) {
        // Of another step: what the one before was owed is gone, too.
        const bool first = tensor.path == 0;
        tensor = {place.path, 0};
        if (first) {
            const std::vector<std::byte> loaded = state->progress.take(
                {state->checkpoint_key, plan.signature, place.path, place.ordinal},
                StateKind::kAveraging);
            (void)RecordReader(loaded).get(&tensor.calls);
        }
    }
    ++state->progress.replicated_calls;
    if (in_group()) {
        thread_group().averaged.emplace_back(state, &tensor);
    }
    return ++tensor.calls % plan.averaging->every == 0;
}

// What is to be done behind a call for the sake of step_ahead; in a group it is noted there.
Result<std::optional<StepAhead::Pending>> step_ahead(const Runtime& runtime,
                                                     const CollectiveCall& call,
                                                     Session* state,
                                                     const StepPosition& place,
                                                     const Plan* plan) {
    if (state->step_ahead == nullptr) {
        return std::optional<StepAhead::Pending>();
    }
    SLIMWIRE_TRY_ASSIGN(const std::optional<StepAhead::Pending> pending,
                        state->step_ahead->follow(runtime.api(), state, call, place, plan));
    if (pending.has_value() && in_group()) {
        thread_group().ahead.emplace_back(state, *pending);
    }
    return pending;
}

// The same of a call that the caller forwards.
std::optional<ncclResult_t> step_ahead_of_native(Runtime& runtime,
                                                 const CollectiveCall& call,
                                                 Session* state,
                                                 const StepPosition& place) {
    const Result<std::optional<StepAhead::Pending>> pending =
        step_ahead(runtime, call, state, place, nullptr);
    if (!pending.ok()) {
        return runtime.fail(
            {pending.status().code(), log_prefix(*state) + ": " + pending.status().message()});
    }
    if (pending.value().has_value() && !in_group()) {
        state->step_ahead->waits = pending.value();
    }
    return std::nullopt;
}

std::optional<ncclResult_t> dispatch_planned(
    Runtime& runtime, const CollectiveCall& call, Session* state, Plan* plan, AskedPlace place) {
    const char* const name = TensorNames::of(call);
    if (plan != nullptr) {
        plan->stats->count_name(name);
    }
    const bool scaled = call.signature.redop == RedOp::kPreMulSum;
    const PreMulScalar* scalar = scaled ? scalar_of(*state, call.nccl_op) : nullptr;
    if (plan == nullptr || !plan->compressed) {
        if (plan != nullptr) {
            plan->stats->count_call();
        }
        const StepPosition at = place.asked ? place.place : follow_native(runtime, call, state);
        if (in_group()) {
            thread_group().has_native = true;
        }
        return step_ahead_of_native(runtime, call, state, at);
    }
    const Result<std::optional<FallbackReason>> fallback =
        check_fallback(runtime, call, state, plan, &place);
    if (!fallback.ok()) {
        return runtime.fail({fallback.status().code(),
                             log_prefix(*state, name) + ": " + fallback.status().message()});
    }
    if (fallback.value().has_value()) {
        count_fallback(state, plan, *fallback.value());
        if (in_group()) {
            thread_group().has_native = true;
        }
        return step_ahead_of_native(runtime, call, state, place.place);
    }
    AccordionCall paced;
    if (plan->low != nullptr) {
        const Result<AccordionCall> next =
            state->accordions.next(runtime.api(), state, &state->progress, plan, place.place);
        if (!next.ok()) {
            return runtime.fail(
                {next.status().code(), log_prefix(*state, name) + ": " + next.status().message()});
        }
        paced = next.value();
        if (in_group()) {
            thread_group().paced.emplace_back(state, paced.tensor);
        }
    }
    Plan* const run = paced.tensor == nullptr ? plan->of_last_call()
                      : paced.at.high         ? plan
                                              : plan->low.get();
    if (!run->compressed) {
        run->stats->count_call();
        if (in_group()) {
            thread_group().has_native = true;
        }
        return std::nullopt;
    }
    const Result<std::optional<StepAhead::Pending>> ahead =
        step_ahead(runtime, call, state, place.place, plan);
    if (!ahead.ok()) {
        return runtime.fail(
            {ahead.status().code(), log_prefix(*state, name) + ": " + ahead.status().message()});
    }
    QueuedCall item{call, state, run, place.place, {}, paced};
    if (scaled) {
        item.scalar = *scalar;
    }
    const bool averages = averages_now(state, *plan, place.place);
    if (in_group()) {
        thread_group().queued.push_back(item);
        if (averages) {
            thread_group().queued.push_back(averaging_of(item, plan));
        }
        return ncclSuccess;
    }
    const ReentryGuard guard;
    Status status = run_alone(runtime, item);
    if (status.ok() && averages) {
        status = run_alone(runtime, averaging_of(item, plan));
    }
    if (status.ok() && ahead.value().has_value()) {
        status =
            StepAhead::finish(runtime.api(), &dispatch_state(runtime).residuals, *ahead.value());
    }
    if (!status.ok()) {
        return runtime.fail({status.code(), log_prefix(*state, name) + ": " + status.message()});
    }
    return ncclSuccess;
}

// The real GroupEnd.
ncclResult_t end_real_group(Runtime& runtime, uint64_t number) {
    Observer* const observer = dispatch_state(runtime).observer.get();
    if (observer == nullptr) {
        return runtime.nccl.GroupEnd();
    }
    observer->group_ending();
    const uint64_t began_ns = steady_ns();
    const ncclResult_t result = runtime.nccl.GroupEnd();
    observer->group_ended(number, began_ns, result);
    return result;
}

ncclResult_t group_end_impl(Runtime& runtime) {
    ThreadGroup& group = thread_group();
    const bool beside_native = group.has_native && !group.queued.empty();
    std::vector<QueuedCall> queue = std::move(group.queued);
    group.queued.clear();
    group.has_native = false;
    const ncclResult_t failed = std::exchange(group.failed, ncclSuccess);
    const ReentryGuard guard;
    if (failed != ncclSuccess) {
        const ncclResult_t ended = runtime.nccl.GroupEnd();
        (void)finish_group_creations(runtime, ended);
        group.uncount();
        return failed;
    }
    Status ready = prepare_queue(runtime, queue);
    if (ready.ok() && beside_native) {
        ready = fork_work_streams(runtime, queue);
    }
    if (!ready.ok()) {
        // The native calls are the other ranks' business, too, and what they bring is read.
        const ncclResult_t ended = runtime.nccl.GroupEnd();
        (void)finish_group_creations(runtime, ended);
        const bool ran = ended == ncclSuccess || ended == ncclInProgress;
        const std::vector<Session*> heard = group.heard;
        group.end_counting(ran);
        for (Session* state : heard) {
            // What fails here the next call on the communicator says.
            (void)(ran ? read_results(runtime, state) : Status());
        }
        return runtime.fail(ready);
    }
    const ncclResult_t result = end_real_group(runtime, group.number);
    const ncclResult_t created = finish_group_creations(runtime, result);
    if (result != ncclSuccess && result != ncclInProgress) {
        group.uncount();
        return result;
    }
    const std::vector<Session*> heard = group.heard;
    if (result == ncclSuccess) {
        for (Session* state : group.flagged) {
            state->skipped_steps->launched(runtime.api(), state->device);
        }
    }
    const auto ahead = std::move(group.ahead);
    group.end_counting(true);
    if (created != ncclSuccess) {
        return created;
    }
    if (!queue.empty()) {
        const std::string first = log_prefix(*queue.front().state);
        if (Status status = run_queue(runtime, std::move(queue), beside_native); !status.ok()) {
            return runtime.fail({status.code(), first + ": " + status.message()});
        }
    }
    for (const auto& [state, pending] : ahead) {
        // What NCCL launches later cannot be followed on the stream.
        if (result == ncclSuccess) {
            const Status status =
                StepAhead::finish(runtime.api(), &dispatch_state(runtime).residuals, pending);
            if (!status.ok()) {
                return runtime.fail({status.code(), log_prefix(*state) + ": " + status.message()});
            }
        }
    }
    for (Session* state : heard) {
        Status status = read_results(runtime, state);
        if (!status.ok() && dispatch_state(runtime).observer != nullptr) {
            dispatch_state(runtime).observer->stop_hearing(state, status);
        } else if (!status.ok()) {
            return runtime.fail(status);
        }
    }
    return result;
}

// A call of the program failed before the real NCCL saw it. In a group that drops the group, the
// real one too, as an error of NCCL's own would: its end returns the error.
void call_failed(Runtime& runtime, ncclResult_t error) noexcept {
    if (in_group() && thread_group().failed == ncclSuccess) {
        thread_group().failed = error;
        // NCCL forgets a group once a call of it was refused; this one is.
        const ReentryGuard guard;
        (void)runtime.nccl.AllReduce(nullptr, nullptr, 0, ncclUint8, ncclSum, nullptr, nullptr);
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
        call_failed(runtime, *result);
    }
    return result;
}

void flag_forwarded(const Runtime& runtime, Session* state, ncclResult_t result) noexcept {
    if (state->skipped_steps == nullptr || !state->skipped_steps->waits_for_launch() ||
        in_group()) {
        return;
    }
    const ReentryGuard guard;
    // What NCCL launches later has no result yet.
    if (result == ncclSuccess) {
        state->skipped_steps->launched(runtime.api(), state->device);
    } else {
        state->skipped_steps->dropped();
    }
}

ncclResult_t call_forwarded(Runtime& runtime, ncclComm_t comm, ncclResult_t result) noexcept {
    Session* const state = !in_group() ? session_of(runtime, comm) : nullptr;
    if (state == nullptr) {
        return result;
    }
    flag_forwarded(runtime, state, result);
    if (state->step_ahead != nullptr) {
        const auto waits = std::exchange(state->step_ahead->waits, std::nullopt);
        // What NCCL launches later cannot be followed on the stream.
        if (waits.has_value() && result == ncclSuccess) {
            const ReentryGuard guard;
            const Status status =
                StepAhead::finish(runtime.api(), &dispatch_state(runtime).residuals, *waits);
            if (!status.ok()) {
                return runtime.fail({status.code(), log_prefix(*state) + ": " + status.message()});
            }
        }
    }
    if (state->tracker == nullptr) {
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

ncclResult_t group_end(Runtime& runtime) noexcept {
    if (!in_group()) {
        return runtime.nccl.GroupEnd();  // unbalanced: NCCL says so
    }
    --t_group_depth;
    if (in_group()) {
        return runtime.nccl.GroupEnd();
    }
    try {
        return group_end_impl(runtime);
    } catch (const std::exception& error) {
        return runtime.fail({Code::kInternalError, std::string("group end: ") + error.what()});
    }
}

}  // namespace slimwire
