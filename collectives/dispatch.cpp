#include "collectives/dispatch.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "collectives/bench_fill.h"
#include "collectives/contents.h"
#include "collectives/keys.h"
#include "collectives/lifecycle.h"
#include "collectives/observer.h"
#include "collectives/rounds.h"
#include "collectives/tensor_names.h"
#include "collectives/training.h"

namespace slimwire {
namespace {

// The group of a thread, made with its first one and gone with it.
struct Group {
    int depth = 0;
    uint64_t number = 0;  // of all groups that ask for places; 0 until this one does
    bool has_native = false;
    ncclResult_t failed = ncclSuccess;  // the first error of a call that NCCL did not see
    std::vector<Queued> queued;
    // Whose ordinal a call of this group has raised; without a plan, whose places it has moved.
    std::vector<std::pair<CommState*, Plan*>> counted;
    std::vector<std::pair<CommState*, PlaceKey>> granted;  // by calls of this group
    std::vector<CommState*> heard;    // whose contents listened to a call of this group
    std::vector<CommState*> flagged;  // that a call of this group may give a flag of a step
};

void end_counting(Group* group, bool ran) noexcept {
    for (CommState* state : group->heard) {
        state->contents->group_ends(ran);
    }
    for (CommState* state : group->flagged) {
        state->flags->dropped();
    }
    group->counted.clear();
    group->granted.clear();
    group->flagged.clear();
    group->heard.clear();
    group->number = 0;
}

// The calls of a group that did not run never were, on any rank.
void uncount(Group* group) noexcept {
    for (const auto& [state, plan] : group->counted) {
        if (plan != nullptr) {
            --plan->calls;
        } else {
            state->places->drop(group->number);
        }
    }
    for (auto place = group->granted.rbegin(); place != group->granted.rend(); ++place) {
        ungrant_place(place->first, place->second);
    }
    end_counting(group, false);
}

Group& thread_group() noexcept {
    static thread_local Group group;
    return group;
}

thread_local int t_depth = 0;  // copy of thread_group().depth that costs no initialisation check

Result<bool> capturing(const DeviceApi& api, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIMWIRE_TRY(
        cuda_status(api, api.stream_is_capturing(stream, &status), "capture of the stream"));
    return status != cudaStreamCaptureStatusNone;
}

// The buffers that a call reads or writes on this rank.
std::pair<bool, bool> used_buffers(const CallFacts& facts, int rank) noexcept {
    const bool at_root = rank == facts.root_or_peer;
    switch (facts.op) {
        case Op::kBroadcast:
        case Op::kScatter:
            return {at_root, true};
        case Op::kReduce:
        case Op::kGather:
            return {true, at_root};
        case Op::kSend:
            return {true, false};
        case Op::kRecv:
            return {false, true};
        default:
            return {true, true};
    }
}

// The emulator refuses host buffers as NCCL does; a compressed call must not hide that.
Result<bool> bad_buffer(const DeviceApi& api, const void* buffer) {
    if (buffer == nullptr || api.emulator == nullptr) {
        return buffer == nullptr;
    }
    cudaPointerAttributes attributes{};
    SLIMWIRE_TRY(cuda_status(api, api.pointer_get_attributes(&attributes, buffer), "buffer"));
    return attributes.type == cudaMemoryTypeUnregistered || attributes.type == cudaMemoryTypeHost;
}

// Malformed calls go native, and NCCL refuses them; they do not count, because the other ranks know
// nothing of them.
Result<std::optional<Detour>> malformed(const DeviceApi& api,
                                        const CollectiveCall& call,
                                        const CommState& state,
                                        bool unknown_operator) {
    const int root = call.facts.root_or_peer;
    if (root < 0 || root >= state.shape.ranks) {
        return std::optional(Detour::kBadRoot);
    }
    const auto [sends, receives] = used_buffers(call.facts, state.rank);
    for (const auto& [used, buffer] : {std::pair(sends, call.send), {receives, call.recv}}) {
        SLIMWIRE_TRY_ASSIGN(const bool bad, used ? bad_buffer(api, buffer) : Result<bool>(false));
        if (bad) {
            return std::optional(Detour::kBadBuffer);
        }
    }
    return unknown_operator ? std::optional(Detour::kUnknownOperator) : std::nullopt;
}

// Asks for the place of a well-formed call, which counts it.
StepPlace place_of(const CallFacts& facts, CommState* state) {
    const uint64_t number = group_number();
    if (t_depth > 0) {
        auto& counted = thread_group().counted;
        if (counted.empty() || counted.back() != std::pair<CommState*, Plan*>(state, nullptr)) {
            counted.emplace_back(state, nullptr);
        }
    }
    return state->places->next(facts, number, state->stats.get());
}

// Whether the place of a call may have a residual, or the call needs none.
bool has_room(const Settings& settings,
              CommState* state,
              const Plan& plan,
              const StepPlace& place) {
    bool first = false;
    const bool granted = grant_place(settings, state, plan, place, &first);
    if (first && t_depth > 0) {
        thread_group().granted.emplace_back(state, PlaceKey{&plan, place.slot, place.ordinal});
    }
    return granted;
}

// Why a call of a compressed plan goes native all the same. Malformed calls aside this is equal on
// all ranks that take part: the phase, the ordinal of the call, its place, being captured. A
// question that CUDA does not answer is an error of the call: the other ranks compress.
Result<std::optional<Detour>> detour_of(const Runtime& runtime,
                                        const CollectiveCall& call,
                                        CommState* state,
                                        Plan* plan,
                                        bool unknown_operator,
                                        AskedPlace* place) {
    const DeviceApi& api = runtime.api();
    SLIMWIRE_TRY_ASSIGN(const std::optional<Detour> refused,
                        malformed(api, call, *state, unknown_operator));
    if (refused.has_value()) {
        return refused;
    }
    const bool message = is_point_to_point(call.facts.op);
    if (message && call.facts.root_or_peer == state->rank) {
        return std::optional(Detour::kToItself);
    }
    const bool by_step = plan->tensor == TensorBy::kStep;
    // Of evaluation the steps of training know nothing.
    if (!training_state().training()) {
        if (plan->feeds_back) {
            return std::optional(Detour::kPhase);
        }
    } else if (state->places != nullptr && !place->asked && (by_step || !message)) {
        *place = {place_of(call.facts, state), true};
    }
    if (plan->start_call > 0) {
        if (t_depth > 0) {
            thread_group().counted.emplace_back(state, plan);
        }
        if (plan->calls++ < plan->start_call) {
            return std::optional(Detour::kBeforeStart);
        }
    }
    if (by_step && !place->place.sure()) {
        return std::optional(Detour::kUnplaced);
    }
    if (by_step && !has_room(runtime.config.settings, state, *plan, place->place)) {
        return std::optional(Detour::kNoMemory);
    }
    SLIMWIRE_TRY_ASSIGN(const bool captured,
                        plan->capturable ? Result<bool>(false) : capturing(api, call.stream));
    return captured ? std::optional(Detour::kCapture) : std::nullopt;
}

// Has the results copied that a communicator's contents want of calls launched by now.
Status read_results(const Runtime& runtime, CommState* state) {
    if (!state->contents->waits_for_launch()) {
        return {};
    }
    const Status status = state->contents->launched(runtime.nccl, runtime.api(), *state);
    return status.ok() ? status : Status{status.code(), where(*state) + ": " + status.message()};
}

// What a call carries, on a communicator that asks for it.
Result<uint32_t> listen(const Runtime& runtime, const CollectiveCall& call, CommState* state) {
    if (call.facts.count == 0 || is_point_to_point(call.facts.op)) {
        return 0u;
    }
    const bool unknown_operator =
        call.facts.redop == RedOp::kPreMulSum && scalar_of(*state, call.nccl_op) == nullptr;
    SLIMWIRE_TRY_ASSIGN(const std::optional<Detour> refused,
                        malformed(runtime.api(), call, *state, unknown_operator));
    if (refused.has_value()) {
        return 0u;
    }
    if (t_depth > 0) {
        auto& heard = thread_group().heard;
        if (std::find(heard.begin(), heard.end(), state) == heard.end()) {
            state->contents->group_begins();
            heard.push_back(state);
        }
    } else {
        state->contents->group_begins();  // of one call, until end_alone()
    }
    return state->contents->next(runtime.nccl, runtime.api(), *state, call);
}

// A call outside groups, of a communicator with contents, was made and returned `result`.
ncclResult_t end_alone(Runtime& runtime, CommState* state, ncclResult_t result) {
    const bool ran = result == ncclSuccess || result == ncclInProgress;
    state->contents->group_ends(ran);
    const Status status = ran ? read_results(runtime, state) : Status();
    return status.ok() ? result : runtime.fail(status);
}

std::optional<ncclResult_t> dispatch_known(Runtime& runtime,
                                           const CollectiveCall& call,
                                           CommState* state);

std::optional<ncclResult_t> dispatch_impl(Runtime& runtime, const CollectiveCall& call) {
    CommState* state = runtime.comms.find(call.comm);
    if (state == nullptr) {
        if (const ncclResult_t creation = await_creation(runtime, call.comm);
            creation != ncclSuccess) {
            return creation;
        }
        state = runtime.comms.find(call.comm);
    }
    if (state == nullptr || state->revoked) {
        return std::nullopt;
    }
    if (state->contents == nullptr) {
        return dispatch_known(runtime, call, state);
    }
    const Result<uint32_t> carried = listen(runtime, call, state);
    if (!carried.ok()) {
        return runtime.fail(
            {carried.status().code(), where(*state) + ": " + carried.status().message()});
    }
    CollectiveCall known = call;
    known.facts.carried = carried.value();
    const std::optional<ncclResult_t> taken = dispatch_known(runtime, known, state);
    return taken.has_value() && t_depth == 0 ? end_alone(runtime, state, *taken) : taken;
}

std::optional<ncclResult_t> dispatch_planned(
    Runtime& runtime, const CollectiveCall& call, CommState* state, Plan* plan, AskedPlace place);

std::optional<ncclResult_t> dispatch_known(Runtime& runtime,
                                           const CollectiveCall& call,
                                           CommState* state) {
    Plan* plan = plan_of(runtime, state, call.facts, t_depth == 0);
    if (plan == nullptr || !plan->asks_place()) {
        return dispatch_planned(runtime, call, state, plan, {});
    }
    CollectiveCall placed = call;
    AskedPlace place;
    if (Status found = find_placed_plan(runtime, state, &placed, &plan, &place); !found.ok()) {
        return runtime.fail({found.code(), where(*state) + ": " + found.message()});
    }
    return dispatch_planned(runtime, placed, state, plan, place);
}

std::optional<ncclResult_t> dispatch_planned(
    Runtime& runtime, const CollectiveCall& call, CommState* state, Plan* plan, AskedPlace place) {
    const char* const name = TensorNames::of(call);
    if (plan != nullptr) {
        plan->stats->count_name(name);
    }
    const bool scaled = call.facts.redop == RedOp::kPreMulSum;
    const PreMulScalar* scalar = scaled ? scalar_of(*state, call.nccl_op) : nullptr;
    if (plan == nullptr || !plan->compressed) {
        if (plan != nullptr) {
            plan->stats->count_call();
        }
        if (!place.asked) {
            (void)follow_native(runtime, call, state);
        }
        if (t_depth > 0) {
            thread_group().has_native = true;
        }
        return std::nullopt;
    }
    const Result<std::optional<Detour>> detour =
        detour_of(runtime, call, state, plan, scaled && scalar == nullptr, &place);
    if (!detour.ok()) {
        return runtime.fail(
            {detour.status().code(), where(*state, name) + ": " + detour.status().message()});
    }
    if (detour.value().has_value()) {
        count_detour(state, plan, *detour.value());
        if (t_depth > 0) {
            thread_group().has_native = true;
        }
        return std::nullopt;
    }
    if (!runtime.config.settings.bench_fill.empty()) {
        if (Status filled = fill_for_benchmark(runtime, call, *state); !filled.ok()) {
            return runtime.fail(filled);
        }
    }
    Queued item{call, state, plan, place.place, {}};
    if (scaled) {
        item.scalar = *scalar;
    }
    if (t_depth > 0) {
        thread_group().queued.push_back(item);
        return ncclSuccess;
    }
    const ReentryGuard guard;
    if (Status status = run_alone(runtime, item); !status.ok()) {
        return runtime.fail({status.code(), where(*state, name) + ": " + status.message()});
    }
    return ncclSuccess;
}

// The real GroupEnd.
ncclResult_t end_real_group(Runtime& runtime, uint64_t number) {
    if (runtime.observer == nullptr) {
        return runtime.nccl.GroupEnd();
    }
    runtime.observer->group_ending();
    const uint64_t began_ns = steady_ns();
    const ncclResult_t result = runtime.nccl.GroupEnd();
    runtime.observer->group_ended(number, began_ns, result);
    return result;
}

ncclResult_t group_end_impl(Runtime& runtime) {
    Group& group = thread_group();
    const bool beside_native = group.has_native && !group.queued.empty();
    std::vector<Queued> queue = std::move(group.queued);
    group.queued.clear();
    group.has_native = false;
    const ncclResult_t failed = std::exchange(group.failed, ncclSuccess);
    const ReentryGuard guard;
    if (failed != ncclSuccess) {
        const ncclResult_t ended = runtime.nccl.GroupEnd();
        (void)finish_group_creations(runtime, ended);
        uncount(&group);
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
        const std::vector<CommState*> heard = group.heard;
        end_counting(&group, ran);
        for (CommState* state : heard) {
            // What fails here the next call on the communicator says.
            (void)(ran ? read_results(runtime, state) : Status());
        }
        return runtime.fail(ready);
    }
    const ncclResult_t result = end_real_group(runtime, group.number);
    const ncclResult_t created = finish_group_creations(runtime, result);
    if (result != ncclSuccess && result != ncclInProgress) {
        uncount(&group);
        return result;
    }
    const std::vector<CommState*> heard = group.heard;
    if (result == ncclSuccess) {
        for (CommState* state : group.flagged) {
            state->flags->launched(runtime.api(), state->device);
        }
    }
    end_counting(&group, true);
    if (created != ncclSuccess) {
        return created;
    }
    if (!queue.empty()) {
        const std::string first = where(*queue.front().state);
        if (Status status = run_queue(runtime, std::move(queue), beside_native); !status.ok()) {
            return runtime.fail({status.code(), first + ": " + status.message()});
        }
    }
    for (CommState* state : heard) {
        Status status = read_results(runtime, state);
        if (!status.ok() && runtime.observer != nullptr) {
            runtime.observer->stop_hearing(state, status);
        } else if (!status.ok()) {
            return runtime.fail(status);
        }
    }
    return result;
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
        (void)call_failed(runtime, *result);
    }
    return result;
}

void flag_forwarded(const Runtime& runtime, CommState* state, ncclResult_t result) noexcept {
    if (state->flags == nullptr || !state->flags->waits_for_launch() || t_depth > 0) {
        return;
    }
    const ReentryGuard guard;
    // What NCCL launches later has no result yet.
    if (result == ncclSuccess) {
        state->flags->launched(runtime.api(), state->device);
    } else {
        state->flags->dropped();
    }
}

ncclResult_t call_forwarded(Runtime& runtime, ncclComm_t comm, ncclResult_t result) noexcept {
    CommState* const state = t_depth == 0 ? runtime.comms.find(comm) : nullptr;
    if (state == nullptr) {
        return result;
    }
    flag_forwarded(runtime, state, result);
    if (state->contents == nullptr) {
        return result;
    }
    try {
        const ReentryGuard guard;
        return end_alone(runtime, state, result);
    } catch (const std::exception& error) {
        return runtime.fail({Code::kInternalError, std::string("results: ") + error.what()});
    }
}

Result<uint32_t> hear(Runtime& runtime, const CollectiveCall& call, CommState* state) {
    const ReentryGuard guard;
    return listen(runtime, call, state);
}

Status heard(Runtime& runtime, CommState* state, ncclResult_t result) {
    const ReentryGuard guard;
    const bool ran = result == ncclSuccess || result == ncclInProgress;
    state->contents->group_ends(ran);
    return ran ? read_results(runtime, state) : Status();
}

StepPlace follow_native(Runtime& runtime, const CollectiveCall& call, CommState* state) {
    // Of no elements, a buffer may be null on some ranks only.
    if (state->places == nullptr || call.facts.count == 0 || is_point_to_point(call.facts.op) ||
        !training_state().training()) {
        return {};
    }
    const bool unknown_operator =
        call.facts.redop == RedOp::kPreMulSum && scalar_of(*state, call.nccl_op) == nullptr;
    const Result<std::optional<Detour>> refused =
        malformed(runtime.api(), call, *state, unknown_operator);
    if (!refused.ok() || refused.value().has_value()) {
        return {};
    }
    if (state->flags != nullptr && StepFlags::may_be(call.facts)) {
        state->flags->made(runtime.api(), state->device, call, state->stats.get());
        if (t_depth > 0) {
            thread_group().flagged.push_back(state);
        }
    }
    return place_of(call.facts, state);
}

Status find_placed_plan(
    Runtime& runtime, CommState* state, CollectiveCall* call, Plan** plan, AskedPlace* place) {
    const bool to_itself =
        is_point_to_point(call->facts.op) && call->facts.root_or_peer == state->rank;
    if (state->places == nullptr || to_itself) {
        return {};
    }
    const bool unknown_operator =
        call->facts.redop == RedOp::kPreMulSum && scalar_of(*state, call->nccl_op) == nullptr;
    SLIMWIRE_TRY_ASSIGN(const std::optional<Detour> refused,
                        malformed(runtime.api(), *call, *state, unknown_operator));
    if (refused.has_value()) {
        return {};
    }
    if (training_state().training()) {
        *place = {place_of(call->facts, state), true};
    }
    if ((*plan)->asks_role && state->places->role() != nullptr) {
        call->facts.role = 1 + static_cast<uint32_t>(state->places->role()->role);
        *plan = plan_of(runtime, state, call->facts, t_depth == 0);
    }
    if (*plan != nullptr && !(*plan)->ordinals.empty() && place->place.sure()) {
        const std::vector<uint32_t>& bounds = (*plan)->ordinals;
        call->facts.nth =
            *(std::upper_bound(bounds.begin(), bounds.end(), place->place.nth) - 1) + 1;
        *plan = plan_of(runtime, state, call->facts, t_depth == 0);
    }
    return {};
}

const PreMulScalar* scalar_of(const CommState& state, ncclRedOp_t op) noexcept {
    for (const PreMulScalar& scalar : state.scalars) {
        if (scalar.op == op) {
            return &scalar;
        }
    }
    return nullptr;
}

Result<std::optional<Detour>> would_detour(
    Runtime& runtime, const CollectiveCall& call, CommState* state, Plan* plan, AskedPlace* place) {
    const bool unknown_operator =
        call.facts.redop == RedOp::kPreMulSum && scalar_of(*state, call.nccl_op) == nullptr;
    return detour_of(runtime, call, state, plan, unknown_operator, place);
}

uint64_t group_number() noexcept {
    static std::atomic<uint64_t> numbers{0};
    if (t_depth == 0) {
        return 0;
    }
    uint64_t& number = thread_group().number;
    number = number != 0 ? number : ++numbers;
    return number;
}

ncclResult_t call_failed(Runtime& runtime, ncclResult_t error) noexcept {
    if (t_depth > 0 && thread_group().failed == ncclSuccess) {
        thread_group().failed = error;
        // NCCL forgets a group once a call of it was refused; this one is.
        const ReentryGuard guard;
        (void)runtime.nccl.AllReduce(nullptr, nullptr, 0, ncclUint8, ncclSum, nullptr, nullptr);
    }
    return error;
}

bool in_group() noexcept {
    return t_depth > 0;
}

void forget_queued(const CommState& state) noexcept {
    if (t_depth > 0) {
        std::erase_if(thread_group().queued,
                      [&](const Queued& item) { return item.state == &state; });
        std::erase_if(thread_group().counted,
                      [&](const auto& counted) { return counted.first == &state; });
        std::erase_if(thread_group().granted,
                      [&](const auto& granted) { return granted.first == &state; });
        std::erase(thread_group().heard, &state);
        std::erase(thread_group().flagged, &state);
    }
}

void group_started() noexcept {
    thread_group().depth = ++t_depth;
}

ncclResult_t group_end(Runtime& runtime) noexcept {
    if (t_depth == 0) {
        return runtime.nccl.GroupEnd();  // unbalanced: NCCL says so
    }
    thread_group().depth = --t_depth;
    if (t_depth > 0) {
        return runtime.nccl.GroupEnd();
    }
    try {
        return group_end_impl(runtime);
    } catch (const std::exception& error) {
        return runtime.fail({Code::kInternalError, std::string("group end: ") + error.what()});
    }
}

void group_dropped() noexcept {
    Group& group = thread_group();
    group.depth = t_depth = std::max(0, t_depth - 1);
    if (t_depth == 0) {
        group.queued.clear();
        group.has_native = false;
        group.failed = ncclSuccess;
        uncount(&group);
        drop_group_creations();
        if (const Runtime* runtime = Runtime::peek();
            runtime != nullptr && runtime->observer != nullptr) {
            runtime->observer->group_dropped();
        }
    }
}

}  // namespace slimwire
