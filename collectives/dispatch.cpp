#include "collectives/dispatch.h"

#include <algorithm>
#include <memory>
#include <span>

#include "collectives/lifecycle.h"
#include "collectives/log.h"
#include "collectives/two_shot.h"

namespace slimwire {
namespace {

struct Queued {
    CollectiveCall call;
    CommState* state = nullptr;
    Plan* plan = nullptr;
    // By value: the program may destroy its operator before the group ends.
    std::optional<PreMulScalar> scalar;
};

// The group of a thread, made with its first one and gone with it.
struct Group {
    int depth = 0;
    bool has_native = false;
    std::vector<Queued> queued;
};

Group& thread_group() noexcept {
    static thread_local Group group;
    return group;
}

thread_local int t_depth = 0;  // copy of thread_group().depth that costs no initialisation check

std::string where(const CommState& state) {
    return "rank " + std::to_string(state.rank) + " comm " +
           (state.stats ? state.stats->comm : "?");
}

const PreMulScalar* scalar_of(const CommState& state, ncclRedOp_t op) noexcept {
    for (const PreMulScalar& scalar : state.scalars) {
        if (scalar.op == op) {
            return &scalar;
        }
    }
    return nullptr;
}

// Makes and shows the counters of a plan's calls; `compressed` tells which of its two ways.
KeyStats* show_key(CommState* state, const Plan& plan, bool compressed, std::string reason) {
    KeyStats& key = state->stats->add_key();
    key.facts = plan.facts;
    key.rule = plan.rule;
    key.reason = std::move(reason);
    key.codec = "native";
    key.algorithm = algorithm_name(Algorithm::kNative);
    key.input_bytes_per_call = plan.facts.count * dtype_bytes(plan.facts.dtype);
    key.native_bytes_per_call = native_wire_bytes(plan.facts, state->shape.ranks);
    key.wire_bytes_per_call = key.native_bytes_per_call;
    key.wire_is_estimate = !compressed;
    if (compressed) {
        key.codec.clear();
        for (const Piece& piece : plan.layout.slices.front().pieces) {
            key.codec += (key.codec.empty() ? "" : "+") + piece.codec.to_string();
        }
        if (plan.error_feedback != ErrorFeedback::kNone) {
            key.codec += std::string("+") + error_feedback_name(plan.error_feedback);
        }
        key.algorithm = algorithm_name(plan.algorithm);
        key.wire_bytes_per_call = two_shot_wire_bytes(plan.layout, state->shape.ranks);
    }
    state->stats->publish(key);
    if (log_enabled(LogLevel::kInfo)) {
        log_line(LogLevel::kInfo,
                 where(*state) + ": " + op_name(plan.facts.op) + " " +
                     dtype_name(plan.facts.dtype) + " " + redop_name(plan.facts.redop) + " count " +
                     std::to_string(plan.facts.count) + ": " + key.codec + " (" + key.reason + ")");
    }
    return &key;
}

const char* detour_reason(Detour detour) noexcept {
    switch (detour) {
        case Detour::kBeforeStart:
            return "before start_step";
        case Detour::kCapture:
            return "under stream capture";
        case Detour::kBadBuffer:
            return "a buffer is null or not device memory";
        case Detour::kUnknownOperator:
            return "the operator was not made on this communicator";
    }
    return "";
}

// A job whose counts never repeat (tokens routed to experts) must not grow without end: from here
// on new kinds of calls that are native have no plan, and share one counter for each operation.
constexpr size_t kMaxNativePlans = 4096;

void count_folded(CommState* state, const CallFacts& facts) {
    KeyStats*& key = state->folded[{facts.op, facts.dtype, facts.redop}];
    if (key == nullptr) {
        key = &state->stats->add_key();
        key->facts = facts;
        key->facts.count = 0;
        key->facts.root_or_peer = 0;
        key->codec = "native";
        key->algorithm = algorithm_name(Algorithm::kNative);
        key->reason = "native, and one of very many kinds of calls";
        key->wire_is_estimate = true;
        key->folded = true;
        state->stats->publish(*key);
    }
    key->count_folded_call(facts.count * dtype_bytes(facts.dtype),
                           native_wire_bytes(facts, state->shape.ranks));
}

// The plan of a call, built at its first sight; null for a native call that gets none.
Plan* plan_of(Runtime& runtime, CommState* state, const CallFacts& facts) {
    Plan* plan = state->plans.find(facts);
    if (plan == nullptr) {
        Plan made = make_plan(facts, state->shape, runtime.config);
        if (!made.compressed && state->plans.size() >= kMaxNativePlans) {
            count_folded(state, facts);
            return nullptr;
        }
        plan = state->plans.insert(std::move(made));
        state->shape.committed_bytes += plan->residual_bytes;
        plan->stats = show_key(state, *plan, plan->compressed, plan->reason);
    }
    return plan;
}

bool capturing(const DeviceApi& api, cudaStream_t stream) noexcept {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return api.stream_is_capturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

// The emulator refuses host buffers as NCCL does; a compressed call must not hide that.
bool host_buffer(const DeviceApi& api, const CollectiveCall& call) noexcept {
    if (api.emulator == nullptr) {
        return false;
    }
    for (const void* buffer : {call.send, static_cast<const void*>(call.recv)}) {
        cudaPointerAttributes attributes{};
        if (api.pointer_get_attributes(&attributes, buffer) != cudaSuccess ||
            attributes.type == cudaMemoryTypeUnregistered ||
            attributes.type == cudaMemoryTypeHost) {
            return true;
        }
    }
    return false;
}

// Why a call of a compressed plan goes native all the same; equal on all ranks: the ordinal of the
// call, being captured, being malformed.
std::optional<Detour> detour_of(const DeviceApi& api,
                                const CollectiveCall& call,
                                Plan* plan,
                                bool unknown_operator) noexcept {
    if (plan->calls++ < plan->start_call) {
        return Detour::kBeforeStart;
    }
    if (capturing(api, call.stream)) {
        return Detour::kCapture;
    }
    if (call.send == nullptr || call.recv == nullptr || host_buffer(api, call)) {
        return Detour::kBadBuffer;
    }
    return unknown_operator ? std::optional(Detour::kUnknownOperator) : std::nullopt;
}

// A compressed call that runs now.
struct Running {
    Running() = default;
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
        if (item.state != nullptr) {
            item.state->users.fetch_sub(1);
        }
    }

    Queued item;
    std::optional<TwoShot> algorithm;
    cudaStream_t work = nullptr;
    bool timed = false;
};

Status begin(Runtime& runtime, Running* run, bool beside_native) {
    const DeviceApi& api = runtime.api();
    CommState& state = *run->item.state;
    Plan& plan = *run->item.plan;
    const CollectiveCall& call = run->item.call;
    SLIMWIRE_TRY(prepare_device_objects(api, &state, plan.scratch_bytes));
    // The work stream was forked from the caller's before the native part of the group was
    // launched, so that a native receive which waits for a peer cannot hold back what that peer
    // waits for.
    run->work = beside_native ? state.work_stream : call.stream;
    // On an equal handle too: a per-thread default stream, or a new stream at an old address, is
    // another stream.
    if (state.chained) {
        SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(run->work, state.chain, 0),
                                 "wait for the call before"));
    }
    // Timing: every call until eight are known, then one of sixteen.
    KeyStats* stats = plan.stats;
    const uint64_t calls = stats->calls.load(std::memory_order_relaxed);
    if (state.timing_key != nullptr) {
        if (api.event_query(state.timing[1]) == cudaSuccess) {
            float elapsed_ms = 0;
            if (api.event_elapsed_time(&elapsed_ms, state.timing[0], state.timing[1]) ==
                cudaSuccess) {
                state.timing_key->count_time(static_cast<uint64_t>(elapsed_ms * 1e6));
            }
            state.timing_key = nullptr;
        } else {
            (void)api.get_last_error();  // an event that is not ready is no error of the program
        }
    }
    run->timed = state.timing_key == nullptr && (calls < 8 || calls % 16 == 0);
    if (run->timed) {
        SLIMWIRE_TRY(
            cuda_status(api, api.event_record(state.timing[0], run->work), "timing event"));
    }
    float* residual = nullptr;
    if (plan.residual_bytes > 0) {
        bool made = false;
        SLIMWIRE_TRY_ASSIGN(residual, runtime.residuals.get(api, identify(state.state_key, call),
                                                            plan.residual_bytes, run->work, &made));
        if (made) {
            state.stats->residual_bytes = runtime.residuals.bytes(state.state_key);
        }
    }
    const PreMulScalar* scalar = run->item.scalar.has_value() ? &*run->item.scalar : nullptr;
    plan.random.step = static_cast<uint32_t>(plan.runs++);
    run->algorithm.emplace(api, runtime.nccl, state, plan, call, run->work, residual, scalar);
    return {};
}

Status end(Runtime& runtime, Running* run, bool beside_native) {
    const DeviceApi& api = runtime.api();
    CommState& state = *run->item.state;
    if (run->timed) {
        SLIMWIRE_TRY(
            cuda_status(api, api.event_record(state.timing[1], run->work), "timing event"));
        state.timing_key = run->item.plan->stats;
    }
    SLIMWIRE_TRY(cuda_status(api, api.event_record(state.chain, run->work), "chain event"));
    state.chained = true;
    if (beside_native) {
        SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(run->item.call.stream, state.chain, 0),
                                 "join the stream"));
    }
    run->item.plan->stats->count_call();
    return {};
}

// Runs calls of different communicators phase by phase, each phase one real NCCL group.
Status run_round(Runtime& runtime, std::span<const Queued> round, bool beside_native) {
    const DeviceApi& api = runtime.api();
    const RealNccl& nccl = runtime.nccl;
    Running alone;  // the usual case allocates nothing
    std::unique_ptr<Running[]> several;
    std::span<Running> running(&alone, 1);
    if (round.size() > 1) {
        several = std::make_unique<Running[]>(round.size());
        running = {several.get(), round.size()};
    }
    int phases = 0;
    for (size_t i = 0; i < round.size(); ++i) {
        const Queued& item = round[i];
        Running& run = running[i];
        const DeviceScope device(api, item.state->device);
        item.state->users.fetch_add(1);
        run.item = item;
        if (item.state->ended) {
            return {Code::kInvalidUsage, "the communicator was aborted"};
        }
        SLIMWIRE_TRY(begin(runtime, &run, beside_native));
        phases = std::max(phases, run.algorithm->phases());
    }
    for (int phase = 0; phase < phases; ++phase) {
        for (Running& run : running) {
            const DeviceScope device(api, run.item.state->device);
            if (phase < run.algorithm->phases()) {
                SLIMWIRE_TRY(run.algorithm->kernels(phase));
            }
        }
        SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
        Status queued;
        for (Running& run : running) {
            if (queued.ok() && phase < run.algorithm->phases()) {
                queued = run.algorithm->exchange(phase);
            }
        }
        Status launched = nccl_status(nccl, nccl.GroupEnd(), "ncclGroupEnd");
        SLIMWIRE_TRY(std::move(queued));
        SLIMWIRE_TRY(std::move(launched));
        for (Running& run : running) {
            const DeviceScope device(api, run.item.state->device);
            if (phase < run.algorithm->phases()) {
                SLIMWIRE_TRY(run.algorithm->finish(phase));
            }
        }
    }
    for (Running& run : running) {
        const DeviceScope device(api, run.item.state->device);
        SLIMWIRE_TRY(end(runtime, &run, beside_native));
    }
    return {};
}

// Splits the queue into rounds: the k-th call of every communicator.
Status run_queue(Runtime& runtime, std::vector<Queued> queue, bool beside_native) {
    while (!queue.empty()) {
        std::vector<Queued> round, rest;
        for (Queued& item : queue) {
            const bool taken = std::any_of(round.begin(), round.end(), [&](const Queued& other) {
                return other.state == item.state;
            });
            (taken ? rest : round).push_back(item);
        }
        SLIMWIRE_TRY(run_round(runtime, round, beside_native));
        queue = std::move(rest);
    }
    return {};
}

std::optional<ncclResult_t> dispatch_impl(Runtime& runtime, const CollectiveCall& call) {
    CommState* state = runtime.comms.find(call.comm);
    if (state == nullptr) {
        return std::nullopt;
    }
    Plan* plan = plan_of(runtime, state, call.facts);
    if (plan == nullptr || !plan->compressed) {
        if (plan != nullptr) {
            plan->stats->count_call();
        }
        if (t_depth > 0) {
            thread_group().has_native = true;
        }
        return std::nullopt;
    }
    const DeviceApi& api = runtime.api();
    const bool scaled = call.facts.redop == RedOp::kPreMulSum;
    const PreMulScalar* scalar = scaled ? scalar_of(*state, call.nccl_op) : nullptr;
    if (const std::optional<Detour> detour =
            detour_of(api, call, plan, scaled && scalar == nullptr);
        detour.has_value()) {
        KeyStats*& stats = plan->detours[static_cast<size_t>(*detour)];
        if (stats == nullptr) {
            stats = show_key(state, *plan, false, detour_reason(*detour));
        }
        stats->count_call();
        if (t_depth > 0) {
            thread_group().has_native = true;
        }
        return std::nullopt;
    }
    Queued item{call, state, plan, {}};
    if (scaled) {
        item.scalar = *scalar;
    }
    if (t_depth > 0) {
        thread_group().queued.push_back(item);
        return ncclSuccess;
    }
    const ReentryGuard guard;
    if (Status status = run_round(runtime, {&item, 1}, false); !status.ok()) {
        return runtime.fail({status.code(), where(*state) + ": " + status.message()});
    }
    return ncclSuccess;
}

ncclResult_t group_end_impl(Runtime& runtime) {
    Group& group = thread_group();
    const bool beside_native = group.has_native && !group.queued.empty();
    std::vector<Queued> queue = std::move(group.queued);
    group.queued.clear();
    group.has_native = false;
    const ReentryGuard guard;
    if (beside_native) {
        const DeviceApi& api = runtime.api();
        for (const Queued& item : queue) {
            if (item.state->ended) {
                continue;  // run_round says so
            }
            const DeviceScope device(api, item.state->device);
            Status forked = prepare_device_objects(api, item.state, item.plan->scratch_bytes);
            if (forked.ok()) {
                forked = cuda_status(api, api.event_record(item.state->fork, item.call.stream),
                                     "fork from the stream");
            }
            if (forked.ok()) {
                forked = cuda_status(
                    api, api.stream_wait_event(item.state->work_stream, item.state->fork, 0),
                    "fork from the stream");
            }
            if (!forked.ok()) {
                (void)runtime.nccl.GroupEnd();
                return runtime.fail(forked);
            }
        }
    }
    const ncclResult_t result = runtime.nccl.GroupEnd();
    const ncclResult_t created = finish_group_creations(runtime, result);
    if (result != ncclSuccess && result != ncclInProgress) {
        return result;
    }
    if (created != ncclSuccess) {
        return created;
    }
    if (!queue.empty()) {
        const std::string first = where(*queue.front().state);
        if (Status status = run_queue(runtime, std::move(queue), beside_native); !status.ok()) {
            return runtime.fail({status.code(), first + ": " + status.message()});
        }
    }
    return result;
}

}  // namespace

std::optional<ncclResult_t> dispatch(Runtime& runtime, const CollectiveCall& call) noexcept {
    try {
        return dispatch_impl(runtime, call);
    } catch (const std::exception& error) {
        return runtime.fail({Code::kInternalError, std::string("dispatch: ") + error.what()});
    }
}

bool in_group() noexcept {
    return t_depth > 0;
}

void forget_queued(const CommState& state) noexcept {
    if (t_depth > 0) {
        std::erase_if(thread_group().queued,
                      [&](const Queued& item) { return item.state == &state; });
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
        drop_group_creations();
    }
}

}  // namespace slimwire
