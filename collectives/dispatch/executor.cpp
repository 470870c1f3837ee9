#include "collectives/dispatch/executor.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/ops/advance.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/paired_exchange.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/call_pairs.h"
#include "collectives/dispatch/call_residual.h"
#include "collectives/dispatch/call_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/feedback/residual_store.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

// A compressed call that runs now.
struct RunningCall {
    RunningCall() = default;
    RunningCall(const RunningCall&) = delete;
    RunningCall& operator=(const RunningCall&) = delete;
    ~RunningCall() {
        if (item.state != nullptr) {
            item.state->users.fetch_sub(1);
        }
    }

    QueuedCall item;
    StreamCapture capture;   // of the program's stream
    bool elsewhere = false;  // not on the device of the round's first call
    FirstCall first;
    bool alone = true;  // ExchangeContext's
    char* scratch = nullptr;
    ExchangeRoom room;
    std::vector<std::unique_ptr<Exchange>> around;  // each around the one before, or in `room`
    Exchange* exchange = nullptr;
    cudaStream_t work = nullptr;
    bool begun = false;  // work of it may be enqueued
    bool timed = false;
    bool sampled = false;           // also seen by hooks that sample
    std::optional<CallRun> hooked;  // as hooks see it; empty where they do not
    std::optional<PairUse> pair;    // of a message with pair=mask
    std::span<PairUse> pairs;       // that one, or those of a collective
};

// A round works on the device of its first call; this is another one's where that differs.
class RunDevice {
  public:
    RunDevice(const DeviceApi& api, const RunningCall& run) {
        if (run.elsewhere) {
            scope_.emplace(api, run.item.state->device);
        }
    }

  private:
    std::optional<DeviceScope> scope_;
};

enum class GroupMode : uint8_t { kAlone, kGrouped, kBesideNative };

GroupMode mode_of(const std::vector<QueuedCall>& queue, bool beside_native) noexcept {
    return beside_native      ? GroupMode::kBesideNative
           : queue.size() > 1 ? GroupMode::kGrouped
                              : GroupMode::kAlone;
}

// Timing: every call until eight are known, then one of sixteen.
// Without the events' help nothing is timed.
void start_timing(const DeviceApi& api, Session& state, CallStats* stats, RunningCall* run) {
    const uint64_t calls = stats->calls.load(std::memory_order_relaxed);
    if (state.timing.key != nullptr) {
        // An event that is not ready is no error of the program.
        if (tolerate(api, api.event_query(state.objects.timing[1]))) {
            float elapsed_ms = 0;
            if (tolerate(api, api.event_elapsed_time(&elapsed_ms, state.objects.timing[0],
                                                     state.objects.timing[1]))) {
                state.timing.key->count_time(static_cast<uint64_t>(elapsed_ms * 1e6));
            }
            state.timing.key = nullptr;
        }
    }
    run->timed = state.timing.key == nullptr && !state.timing.started &&
                 (calls < 8 || calls % 16 == 0) &&
                 tolerate(api, api.event_record(state.objects.timing[0], run->work));
    state.timing.started |= run->timed;
}

// Calls of one communicator run one after the other, whatever their streams are. On an equal handle
// too: a per-thread default stream, or a new stream at an old address, is another stream. In a
// graph the first call waits for what was last enqueued when the graph is launched, as NCCL's own
// do.
Status wait_for_call_before(const DeviceApi& api, Session* state, const RunningCall& run) {
    if (!run.capture.active) {
        return state->objects.chained
                   ? cuda_status(api, api.stream_wait_event(run.work, state->objects.chain, 0),
                                 "wait for the call before")
                   : Status();
    }
    if (state->objects.capture_id == run.capture.id) {
        return cuda_status(api, api.stream_wait_event(run.work, state->objects.capture_chain, 0),
                           "wait for the captured call before");
    }
    return cuda_status(api,
                       api.stream_wait_event(run.work, state->objects.chain, cudaEventWaitExternal),
                       "wait for the call before the graph");
}

// How much of what ranks keep alike a call changes.
uint32_t changed_alike(const Plan& plan) noexcept {
    const bool draws = plan.draws.any && plan.draws.alike && !is_point_to_point(plan.signature.op);
    return (plan.replicated_state() ? 1 : 0) + (draws ? 1 : 0);
}

// By what the call's codecs draw, and counts that.
Status draw(const BeforeCall& before_call, Session* state, ExchangeContext* context) {
    const Plan& plan = context->plan;
    context->random = plan.draws.key;
    context->random.rank = static_cast<uint32_t>(state->rank);
    RandomSteps& random = state->random;
    if (before_call.captured && random.on_device == nullptr &&
        (plan.draws.any || changed_alike(plan) > 0)) {
        SLIMWIRE_TRY(random.move_to_device(before_call));
    }
    state->progress.replicated_calls += before_call.captured ? 0 : changed_alike(plan);
    if (!plan.draws.any) {
        return {};
    }
    const int counter = is_point_to_point(plan.signature.op) ? 1 : 0;
    // What the codec of sums or factors draws all ranks must draw, whether they loaded a state or
    // not: by what they loaded only where they agreed on that.
    const bool alike = plan.draws.alike;
    const uint32_t own = random.before[counter];
    const uint32_t before = !alike ? own : counter == 0 ? state->progress.drawn : 0;
    context->drawn_before = own - before;
    if (random.on_device != nullptr) {
        context->random.step = before;
        context->random.step_ptr = random.on_device + counter;
    } else {
        context->random.step = before + random.here[counter]++;
    }
    return {};
}

void put_around(std::unique_ptr<Exchange> outer, RunningCall* run) {
    if (outer != nullptr) {
        run->exchange = outer.get();
        run->around.push_back(std::move(outer));
    }
}

// What runs the call.
Status make_exchanges(const ExchangeContext& context, const Residual& own, RunningCall* run) {
    const QueuedCall& item = run->item;
    Session& state = *item.state;
    if (item.hook != nullptr) {
        put_around(item.hook->exchange(context, item.keeper, &run->room), run);
    } else {
        run->exchange = descriptor_of(context.plan.algorithm).make(context, &run->room);
    }
    if (item.plan->replicated_state() && own.origin != ResidualOrigin::kKept) {
        std::optional<uint64_t> snapshot_id;
        if (own.origin == ResidualOrigin::kRestored) {
            snapshot_id = PendingState::instance().moment_of(state) ^ own.name;
        }
        put_around(std::make_unique<EstimatesOfAll>(context, snapshot_id, run->exchange), run);
    }
    if (item.controller != nullptr) {
        put_around(item.controller->wrap(context, item.choice, run->exchange), run);
    }
    return {};
}

// What the tensor of a call keeps, by the plan `keeper`: the call's own, or that of the call whose
// hook it is.
Result<Residual> residual_of(Runtime& runtime,
                             const BeforeCall& before,
                             const QueuedCall& item,
                             const Plan& keeper) {
    Session& state = *item.state;
    if (keeper.residual.bytes == 0 || !keeps_residual(keeper, state.rank)) {
        return Residual();
    }
    const TensorUse use =
        identify(state.state_key, item.call, keeper.needs_slot, item.place, state.models.count());
    SLIMWIRE_TRY_ASSIGN(const Residual own, dispatch_state(runtime).residuals.get(
                                                before, state.device, use, keeper.residual.bytes,
                                                {state.checkpoint_key, keeper.residual.shape,
                                                 keeper.replicated_state(), &keeper, &state}));
    if (!own.usual()) {
        SLIMWIRE_TRY(take_unusual(runtime, before, item, keeper, own));
    }
    return own;
}

Status begin(Runtime& runtime, RunningCall* run, cudaStream_t stream, GroupMode group_mode) {
    const DeviceApi& api = runtime.api();
    const QueuedCall& item = run->item;
    Session& state = *item.state;
    const Plan& plan = *item.plan;
    run->work = group_mode == GroupMode::kBesideNative ? state.objects.work_stream : stream;
    run->begun = true;
    SLIMWIRE_TRY(wait_for_call_before(api, &state, *run));
    if (item.call.launched != nullptr && item.hook == nullptr) {
        SLIMWIRE_TRY(cuda_status(api, api.event_record(item.call.launched, run->work),
                                 "launch completion event"));
    }
    // A hook's own call is part of the one before; a graph's replays are not seen.
    const bool hooked = !run->capture.active && item.hook == nullptr;
    if (hooked) {
        start_timing(api, state, item.stats, run);
    }
    const Plan& keeper = item.keeper != nullptr ? *item.keeper->plan : plan;
    const BeforeCall before{api, &state.objects, run->work, run->capture.active};
    SLIMWIRE_TRY_ASSIGN(const Residual own, residual_of(runtime, before, item, keeper));
    const PreMulScalar* const scalar = item.scalar.has_value() ? &*item.scalar : nullptr;
    if (hooked) {
        if (own.has_other_scale()) {
            SLIMWIRE_TRY(follow_loss_scale(api, plan, own, run->work));
        }
        run->hooked.emplace(CallRun{api, state, plan, item.stats, item.call, item.place, own,
                                    scalar, run->scratch, run->work, run->timed});
        run->sampled = CallHook::takes_sample_at(item.stats->calls);
        for (const std::unique_ptr<CallHook>& hook : state.hooks) {
            if (run->sampled || !hook->samples) {
                hook->before(*run->hooked);
            }
        }
    }
    ExchangeContext context{api, *state.nccl, state, plan, item.call};
    context.work = run->work;
    context.scratch = run->scratch;
    context.residual = own.buffer;
    context.scalar = scalar;
    context.alone = run->alone;
    if (plan.pairs_calls) {
        SLIMWIRE_TRY_ASSIGN(run->pairs, pair_up(before, item, &run->pair));
        context.pairs = run->pairs.data();
    }
    SLIMWIRE_TRY(draw(before, &state, &context));
    return make_exchanges(context, own, run);
}

Status end(Runtime& runtime, RunningCall* run, GroupMode group_mode, bool after_another) {
    const DeviceApi& api = runtime.api();
    Session& state = *run->item.state;
    const Plan& plan = *run->item.plan;
    if (run->timed) {
        if (tolerate(api, api.event_record(state.objects.timing[1], run->work))) {
            state.timing.key = run->item.stats;
        }
        state.timing.started = false;
    }
    if (run->hooked.has_value()) {
        for (const std::unique_ptr<CallHook>& hook : state.hooks) {
            if (run->sampled || !hook->samples) {
                hook->after(*run->hooked);
            }
        }
    }
    const bool captured = run->capture.active;
    if (plan.draws.any && state.random.on_device != nullptr) {
        const int counter = is_point_to_point(plan.signature.op) ? 1 : 0;
        SLIMWIRE_TRY(enqueue(api, AdvanceArgs{state.random.on_device + counter, 1}, run->work));
    }
    if (const uint32_t changed = changed_alike(plan); captured && changed > 0) {
        SLIMWIRE_TRY(enqueue(api, AdvanceArgs{state.random.on_device + 2, changed}, run->work));
    }
    const cudaEvent_t chain = captured ? state.objects.capture_chain : state.objects.chain;
    if (run->item.first && !captured) {
        await_types(api, state, run->item.call.signature, run->work);
    }
    // Several calls of one communicator in a round may run on several streams; the chain is after
    // all of them.
    if (after_another) {
        SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(run->work, chain, 0),
                                 "wait for the call beside"));
    }
    for (const PairUse& pair : run->pairs) {
        if (pair.masks != nullptr && pair.place.answers.has_value()) {
            pair.masks->answered(*pair.place.answers);
        }
        if (pair.weights != nullptr) {
            SLIMWIRE_TRY(pair.weights->end_use(api, run->work));
        }
    }
    if (captured) {
        // A node of its own, which whoever waits for capture_chain has to join too.
        SLIMWIRE_TRY(cuda_status(
            api,
            api.event_record_with_flags(state.objects.chain, run->work, cudaEventRecordExternal),
            "chain event of a graph"));
        state.objects.capture_id = run->capture.id;
    }
    SLIMWIRE_TRY(cuda_status(api, api.event_record(chain, run->work), "chain event"));
    state.objects.chained = true;
    if (group_mode == GroupMode::kBesideNative) {
        SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(run->item.call.stream, chain, 0),
                                 "join the stream"));
    }
    if (run->item.hook == nullptr) {
        count_run(state, plan, run->item.stats);
    }
    return {};
}

// Gives every call its part of its communicator's scratch; of captured ones that have no room in
// what is reserved, one of its graph's own.
Status claim_scratch(Runtime& runtime, std::span<RunningCall> running) {
    const DeviceApi& api = runtime.api();
    for (RunningCall& run : running) {
        run.item.state->objects.claimed_bytes = 0;
    }
    for (RunningCall& run : running) {
        run.item.state->objects.claimed_bytes += run.item.plan->scratch.of_call(run.alone);
    }
    for (RunningCall& run : running) {
        DeviceObjects& objects = run.item.state->objects;
        const bool fits = objects.claimed_bytes <= objects.room();
        const uint64_t wanted = fits || run.capture.active ? 0 : objects.claimed_bytes;
        if (!objects.prepared(wanted)) {
            SLIMWIRE_TRY(prepare_device_objects(api, run.item.state, wanted));
        }
        objects.claimed = fits ? objects.reserve : objects.scratch;
    }
    for (RunningCall& run : running) {
        DeviceObjects& objects = run.item.state->objects;
        const bool reserved = objects.claimed == objects.reserve && objects.reserve != nullptr;
        const uint64_t bytes = run.item.plan->scratch.of_call(run.alone);
        // From the end: what is left is the next one's.
        objects.claimed_bytes -= bytes;
        run.scratch = static_cast<char*>(objects.claimed) + objects.claimed_bytes;
        if (run.capture.active) {
            const RunDevice device(api, run);
            GraphMemory& graphs = runtime.graph_memory;
            if (!reserved) {
                SLIMWIRE_TRY_ASSIGN(void* memory, graphs.allocate(api, run.capture.graph,
                                                                  run.item.state->device, bytes));
                run.scratch = static_cast<char*>(memory);
            }
            if (objects.capture_id != run.capture.id && objects.reserve != nullptr) {
                SLIMWIRE_TRY(graphs.keep_reserve(api, run.capture.graph, run.item.state));
            }
        }
    }
    return {};
}

bool exchanges(const RunningCall& run, int phase) {
    return phase < run.exchange->phases() && run.exchange->exchanges(phase);
}

// One real NCCL group of what all have for the phase. One library made their communicators.
Status exchange_phase(const DeviceApi& api, std::span<RunningCall> running, int phase) {
    const RealNccl& nccl = *running.front().item.state->nccl;
    SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
    Status queued;
    for (RunningCall& run : running) {
        if (queued.ok() && exchanges(run, phase)) {
            queued = run.exchange->exchange(phase);
        }
    }
    const ncclResult_t group_result = nccl.GroupEnd();
    Status launched = nccl_status(nccl, group_result, "ncclGroupEnd");
    for (RunningCall& run : running) {
        if (launched.ok() && group_result == ncclInProgress) {
            launched = settle_exchange(api, run.item.state);
        }
    }
    SLIMWIRE_TRY(std::move(queued));
    return launched;
}

Status run_phases(Runtime& runtime, std::span<RunningCall> running) {
    const DeviceApi& api = runtime.api();
    int phases = 0;
    for (const RunningCall& run : running) {
        phases = std::max(phases, run.exchange->phases());
    }
    for (int phase = 0; phase < phases; ++phase) {
        for (RunningCall& run : running) {
            const RunDevice device(api, run);
            if (phase < run.exchange->phases()) {
                SLIMWIRE_TRY(run.exchange->kernels(phase));
            }
        }
        if (std::any_of(running.begin(), running.end(),
                        [&](const RunningCall& run) { return exchanges(run, phase); })) {
            SLIMWIRE_TRY(exchange_phase(api, running, phase));
        }
        for (RunningCall& run : running) {
            const RunDevice device(api, run);
            if (phase < run.exchange->phases()) {
                SLIMWIRE_TRY(run.exchange->finish(phase));
            }
        }
    }
    return {};
}

Status run_claimed(Runtime& runtime, std::span<RunningCall> running, GroupMode group_mode) {
    const DeviceApi& api = runtime.api();
    for (RunningCall& run : running) {
        const RunDevice device(api, run);
        // Calls that go by each other take turns, also where their group is on several streams.
        const auto first = std::find_if(running.data(), &run, [&](const RunningCall& other) {
            return other.item.state == run.item.state && other.item.plan->pairs_calls &&
                   run.item.plan->pairs_calls;
        });
        SLIMWIRE_TRY(begin(runtime, &run, first->item.call.stream, group_mode));
    }
    SLIMWIRE_TRY(run_phases(runtime, running));
    for (RunningCall& run : running) {
        const RunDevice device(api, run);
        const bool after_another = std::any_of(
            running.data(), &run,
            [&](const RunningCall& before) { return before.item.state == run.item.state; });
        SLIMWIRE_TRY(end(runtime, &run, group_mode, after_another));
        first_call_ends(api, run.item.state, run.first);
    }
    return {};
}

// `in_phases`: phases of a message may wait for its peer one after the other. `no_room`: whether
// memory for the calls' scratch is missing, and nothing of them is enqueued.
Status run_batch(Runtime& runtime,
                 std::span<const QueuedCall> round,
                 GroupMode group_mode,
                 bool in_phases,
                 bool* no_room = nullptr) {
    const DeviceApi& api = runtime.api();
    RunningCall alone;  // the usual case allocates nothing
    std::unique_ptr<RunningCall[]> several;
    std::span<RunningCall> running(&alone, 1);
    if (round.size() > 1) {
        several = std::make_unique<RunningCall[]>(round.size());
        running = {several.get(), round.size()};
    }
    const DeviceScope device_of_round(api, round.front().state->device);
    for (size_t i = 0; i < round.size(); ++i) {
        round[i].state->users.fetch_add(1);
        running[i].item = round[i];
        running[i].elsewhere = round[i].state->device != round.front().state->device;
        running[i].alone = in_phases;
        if (round[i].state->ended) {
            return {Code::kInvalidUsage, "the communicator was aborted"};
        }
        SLIMWIRE_TRY_ASSIGN(running[i].capture, capture_of(api, round[i].call.stream));
        running[i].first = first_call_begins(api, *round[i].state);
    }
    if (Status claimed = claim_scratch(runtime, running); !claimed.ok()) {
        if (no_room != nullptr) {
            *no_room = claimed.code() == Code::kOutOfMemory;
        }
        return claimed;
    }
    Status ran = run_claimed(runtime, running, group_mode);
    for (const RunningCall& run : running) {
        if (!ran.ok() && run.begun && !run.capture.active) {
            chain_all(api, run.item.state, run.work);
        }
    }
    return ran;
}

}  // namespace

Status run_alone(Runtime& runtime, const QueuedCall& item) {
    return run_batch(runtime, {&item, 1}, GroupMode::kAlone, true);
}

Status prepare_queue(Runtime& runtime, const std::vector<QueuedCall>& queue, bool beside_native) {
    if (queue.empty()) {
        return {};  // of native calls only; there may be no device functions
    }
    const DeviceApi& api = runtime.api();
    const bool alone = mode_of(queue, beside_native) == GroupMode::kAlone;
    for (const QueuedCall& item : queue) {
        item.state->objects.claimed_bytes = 0;
    }
    for (const QueuedCall& item : queue) {
        Session& state = *item.state;
        SLIMWIRE_TRY_ASSIGN(const auto capture, capture_of(api, item.call.stream));
        if (state.ended || capture.active) {
            continue;  // run_batch says the first; captured calls ask for theirs
        }
        SLIMWIRE_TRY(prepare_device_objects(api, &state, 0));
        if (is_point_to_point(item.call.signature.op)) {  // those run together
            state.objects.claimed_bytes += item.plan->scratch.of_call(alone);
            if (state.objects.claimed_bytes > state.objects.room()) {
                (void)prepare_device_objects(api, &state, state.objects.claimed_bytes);
            }
        }
    }
    return {};
}

Status fork_work_streams(Runtime& runtime, const std::vector<QueuedCall>& queue) {
    const DeviceApi& api = runtime.api();
    for (const QueuedCall& item : queue) {
        Session& state = *item.state;
        if (state.ended) {
            continue;  // run_batch says so
        }
        const DeviceScope device(api, state.device);
        SLIMWIRE_TRY(prepare_device_objects(api, &state, 0));
        SLIMWIRE_TRY(cuda_status(api, api.event_record(state.objects.fork, item.call.stream),
                                 "fork from the stream"));
        SLIMWIRE_TRY(cuda_status(
            api, api.stream_wait_event(state.objects.work_stream, state.objects.fork, 0),
            "fork from the stream"));
    }
    return {};
}

namespace {

// Messages of a group run together, because a peer may group them otherwise. A rank that has no
// memory for that runs one after the other, for each of which its reserve has room, in an order
// that ranks have alike; both ends of one together where both are this process's.
Status run_messages(Runtime& runtime,
                    const std::vector<QueuedCall>& messages,
                    GroupMode group_mode) {
    bool no_room = false;
    Status together =
        run_batch(runtime, messages, group_mode, group_mode == GroupMode::kAlone, &no_room);
    if (!no_room) {
        return together;
    }
    using Order = std::tuple<uint64_t, int, int, int, int>;
    std::map<Order, std::vector<QueuedCall>> in_order;
    std::map<std::pair<const Session*, Order>, int> before;
    for (const QueuedCall& message : messages) {
        const CallSignature& signature = message.call.signature;
        const int own = message.state->rank, peer = signature.root_or_peer;
        Order order{message.state->comm_key, std::min(own, peer), std::max(own, peer),
                    signature.op == Op::kSend ? own : peer, 0};
        std::get<4>(order) = before[{message.state, order}]++;
        in_order[order].push_back(message);
    }
    log_once(LogLevel::kWarn, "messages one by one",
             log_prefix(*messages.front().state, nullptr) +
                 ": messages of a group go one after the other: " + together.message());
    for (const auto& [order, ends] : in_order) {
        SLIMWIRE_TRY(run_batch(runtime, ends, group_mode, true));
    }
    return {};
}

// The next collective of every communicator. Hooks' own on one device may work with the same
// memory: they go one at a time, in an order that ranks have alike.
std::vector<QueuedCall> take_round(std::vector<QueuedCall>* queue) {
    std::vector<QueuedCall> next, rest, round, later;
    for (const QueuedCall& item : *queue) {
        const bool taken = std::any_of(next.begin(), next.end(), [&](const QueuedCall& other) {
            return other.state == item.state;
        });
        (taken ? rest : next).push_back(item);
    }
    for (const QueuedCall& item : next) {
        const bool waits = item.hook != nullptr &&
                           std::any_of(next.begin(), next.end(), [&](const QueuedCall& other) {
                               return other.hook != nullptr &&
                                      other.state->device == item.state->device &&
                                      other.state->comm_key < item.state->comm_key;
                           });
        (waits ? later : round).push_back(item);
    }
    later.insert(later.end(), rest.begin(), rest.end());
    *queue = std::move(later);
    return round;
}

}  // namespace

Status run_queue(Runtime& runtime, std::vector<QueuedCall> queue, bool beside_native) {
    const GroupMode group_mode = mode_of(queue, beside_native);
    const auto messages_begin = std::stable_partition(
        queue.begin(), queue.end(),
        [](const QueuedCall& item) { return !is_point_to_point(item.call.signature.op); });
    const std::vector<QueuedCall> messages(messages_begin, queue.end());
    queue.erase(messages_begin, queue.end());
    while (!queue.empty()) {
        const std::vector<QueuedCall> round = take_round(&queue);
        SLIMWIRE_TRY(run_batch(runtime, round, group_mode, group_mode == GroupMode::kAlone));
    }
    return messages.empty() ? Status() : run_messages(runtime, messages, group_mode);
}

}  // namespace slimwire
