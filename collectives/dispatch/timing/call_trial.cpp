#include "collectives/dispatch/timing/call_trial.h"

#include <algorithm>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/planner.h"
#include "collectives/plan/comm_costs.h"

namespace slimwire {
namespace {

constexpr size_t kSizes = TimedCalls::kBytes.size();
// All calls of a step, one of them to connect the ranks.
constexpr size_t kMarks =
    2 * (TimedCalls::kRuns + 1) * TimedCalls::kKinds * TimedCalls::kFirstSizes + 1;

// A sum, or an average where the rule takes no sums; nothing where it takes neither.
std::optional<CallSignature> signature_of(const Rule& rule,
                                          const PlanShape& shape,
                                          Op op,
                                          DType dtype) {
    Match match = rule.match;
    match.min_bytes = 0;
    match.max_bytes = ~0ull;
    CallSignature signature;
    signature.op = op;
    signature.dtype = dtype;
    for (const RedOp redop : {RedOp::kSum, RedOp::kAvg}) {
        signature.redop = reduces(op) ? redop : RedOp::kNone;
        if (matches_call(match, signature, 0, shape.ranks, shape.scope, shape.name)) {
            return signature;
        }
    }
    return std::nullopt;
}

// By the rule's codec and algorithm, without what else it says.
Tried try_rule(CallSignature signature, const Rule& rule, PlanShape shape, const Config& config) {
    Config alone;
    alone.settings = config.settings;
    Rule& only = alone.policy.rules.emplace_back();
    only.name = rule.name;
    only.action.codec = rule.action.codec;
    only.action.algorithm = rule.action.algorithm;
    shape.costs = nullptr;
    Tried tried;
    tried.kind = {signature.op, signature.dtype, rule.action.codec->to_string(), ""};
    const auto parts = static_cast<uint64_t>(signature.op == Op::kAllReduce ? 1 : shape.ranks);
    for (size_t size = kSizes; size-- > 0;) {
        signature.count = TimedCalls::kBytes[size] / dtype_bytes(signature.dtype) / parts;
        Plan plan = make_plan(signature, shape, alone);
        const std::string algorithm = algorithm_name(plan.algorithm);
        if (plan.compressed && plan.residual.bytes == 0 && !plan.pairs_calls &&
            (tried.kind.algorithm.empty() || tried.kind.algorithm == algorithm)) {
            tried.kind.algorithm = algorithm;
            tried.plans[size] = std::move(plan);
        }
    }
    return tried;
}

ncclResult_t queue_natively(const RealNccl& nccl, const CollectiveCall& call) {
    const size_t count = call.signature.count;
    if (call.signature.op == Op::kAllReduce) {
        return nccl.AllReduce(call.send, call.recv, count, call.nccl_dtype, call.nccl_op, call.comm,
                              call.stream);
    }
    return call.signature.op == Op::kReduceScatter
               ? nccl.ReduceScatter(call.send, call.recv, count, call.nccl_dtype, call.nccl_op,
                                    call.comm, call.stream)
               : nccl.AllGather(call.send, call.recv, count, call.nccl_dtype, call.comm,
                                call.stream);
}

Status run_natively(const DeviceApi& api, const std::vector<QueuedCall>& calls) {
    const RealNccl& nccl = *calls.front().state->nccl;
    SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
    Status queued;
    for (const QueuedCall& one : calls) {
        const DeviceScope device(api, one.state->device);
        if (queued.ok()) {
            queued = nccl_status(nccl, queue_natively(nccl, one.call), "a timed call");
        }
    }
    const ncclResult_t launched = nccl.GroupEnd();
    SLIMWIRE_TRY(std::move(queued));
    SLIMWIRE_TRY(nccl_status(nccl, launched, "ncclGroupEnd of timed calls"));
    for (const QueuedCall& one : calls) {
        SLIMWIRE_TRY(launched == ncclInProgress ? settle_exchange(api, one.state) : Status());
    }
    return {};
}

}  // namespace

std::vector<Tried> calls_to_try(const PlanShape& shape, const Config& config) {
    std::vector<Tried> all;
    for (const Rule& rule : config.policy.rules) {
        const Action& action = rule.action;
        if (rule.off || !action.auto_bytes || !asks_costs(action) || action.low_rank() ||
            action.pairs_masks()) {
            continue;
        }
        for (const Op op : {Op::kAllReduce, Op::kReduceScatter, Op::kAllGather}) {
            for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
                const auto signature = signature_of(rule, shape, op, dtype);
                if (!signature.has_value() || all.size() == TimedCalls::kKinds) {
                    continue;
                }
                Tried one = try_rule(*signature, rule, shape, config);
                const bool known = std::any_of(all.begin(), all.end(), [&](const Tried& other) {
                    return other.kind == one.kind;
                });
                if (!known && !one.kind.algorithm.empty()) {
                    all.push_back(std::move(one));
                }
            }
        }
    }
    return all;
}

Trial::Trial(Runtime& runtime, Communicator* communicator, std::vector<Tried> kinds)
    : state(communicator), tried(std::move(kinds)), api_(runtime.api()), marks_(kMarks) {
    own.comm = state->comm;
    own.nccl = state->nccl;
    own.rank = state->rank;
    own.device = state->device;
    own.shape = state->shape;
    own.stats = std::make_shared<CommStats>();  // that nobody reports
    own.stats->comm = state->stats->comm;
    own.device_memory = &runtime.device_memory;
    own.exchange_comm = std::exchange(state->exchange_comm, nullptr);
}

void Trial::abort() noexcept {
    if (own.exchange_comm != nullptr) {
        (void)own.nccl->CommAbort(std::exchange(own.exchange_comm, nullptr));
    }
}

void Trial::give_back() {
    const DeviceScope device(api_, own.device);
    if (own.objects.work_stream != nullptr) {
        state->objects.chained |=
            tolerate(api_, api_.event_record(state->objects.chain, own.objects.work_stream));
    }
    state->stats->private_bytes += own.stats->private_bytes.exchange(0);
    hand_back();
}

void Trial::hand_back() noexcept {
    __atomic_store_n(&state->exchange_comm, std::exchange(own.exchange_comm, nullptr),
                     __ATOMIC_RELEASE);
}

Trial::~Trial() {
    if (own.exchange_comm != nullptr) {  // the program gives the creation up, or a rank is gone
        hand_back();
    }
    const DeviceScope device(api_, own.device);
    if (own.objects.work_stream != nullptr) {
        tolerate(api_, api_.event_record(own.objects.chain, own.objects.work_stream));
    }
    Retirement left(own.device_memory, api_, own.device);
    release_device_objects(api_, &own, &left);
    left.add(message_);
    for (const Mark& mark : marks_) {
        if (mark.event != nullptr) {
            tolerate(api_, api_.event_destroy(mark.event));
        }
    }
}

bool Trial::prepare() {
    const DeviceScope device(api_, own.device);
    uint64_t scratch_bytes = 0;
    for (const Tried& one : tried) {
        for (const std::optional<Plan>& plan : one.plans) {
            scratch_bytes = std::max(scratch_bytes, plan ? plan->scratch.of_call(false) : 0);
        }
    }
    const uint64_t message_bytes = TimedCalls::kBytes.back();
    bool ready =
        prepare_device_objects(api_, state, 0).ok() &&
        prepare_device_objects(api_, &own, scratch_bytes).ok() &&
        tolerate(api_, own.device_memory->allocate(api_, own.device, message_bytes, &message_)) &&
        tolerate(api_, api_.memset_async(message_, 0, message_bytes, own.objects.work_stream));
    for (Mark& mark : marks_) {
        ready =
            ready && tolerate(api_, api_.event_create_with_flags(&mark.event, cudaEventDefault));
    }
    return ready;
}

QueuedCall Trial::call(size_t kind, size_t size) {
    QueuedCall queued;
    if (kind >= tried.size() || !tried[kind].plans[size].has_value()) {
        return queued;
    }
    queued.plan = &*tried[kind].plans[size];
    queued.state = &own;
    queued.stats = &counted_;
    CollectiveCall& call = queued.call;
    call.signature = queued.plan->signature;
    call.nccl_dtype = static_cast<ncclDataType_t>(call.signature.dtype);
    call.nccl_op = call.signature.redop == RedOp::kAvg ? ncclAvg : ncclSum;
    call.comm = own.exchange_comm;
    call.stream = own.objects.work_stream;
    char* const part = static_cast<char*>(message_) + static_cast<uint64_t>(own.rank) *
                                                          call.signature.count *
                                                          dtype_bytes(call.signature.dtype);
    call.send = call.signature.op == Op::kAllGather ? part : message_;
    call.recv = call.signature.op == Op::kReduceScatter ? part : message_;
    return queued;
}

Status Trial::mark(uint32_t* ns) {
    const DeviceScope device(api_, own.device);
    marks_[marked_].ns = ns;
    return cuda_status(api_, api_.event_record(marks_[marked_++].event, own.objects.work_stream),
                       "mark of timed calls");
}

Result<bool> Trial::read(uint64_t deadline_us, AbortWatch* watch) {
    const DeviceScope device(api_, own.device);
    const size_t last = std::exchange(marked_, 0) - 1;
    bool busy = false;
    for (Backoff backoff; !tolerate(api_, api_.event_query(marks_[last].event)); backoff.pause()) {
        SLIMWIRE_TRY(watch->look(&busy));
        if (steady_us() >= deadline_us) {
            return false;
        }
    }
    for (size_t i = 0; i < last; ++i) {
        float ms = 0;
        uint32_t* const ns = marks_[i].ns;
        if (ns == nullptr) {
            continue;
        }
        if (!tolerate(api_, api_.event_elapsed_time(&ms, marks_[i].event, marks_[i + 1].event))) {
            return false;
        }
        const auto took = static_cast<uint32_t>(std::clamp(1e6 * double{ms}, 1.0, 4e9));
        *ns = *ns == 0 ? took : std::min(*ns, took);
    }
    return true;
}

Status TrialBatch::enqueue(size_t kind, size_t size, bool compressed, bool counts) {
    std::vector<QueuedCall> calls;
    for (Trial* trial : running) {
        if (QueuedCall call = trial->call(kind, size); call.plan != nullptr) {
            TimedCalls::Pair& pair = trial->measured.pairs[kind][size];
            uint32_t* const ns = compressed ? &pair.compressed_ns : &pair.native_ns;
            SLIMWIRE_TRY(trial->mark(counts ? ns : nullptr));
            calls.push_back(call);
        }
    }
    if (calls.empty()) {
        return {};
    }
    return compressed ? run_queue(runtime, std::move(calls), false)
                      : run_natively(runtime.api(), calls);
}

Status TrialBatch::work() {
    const DeviceApi& api = runtime.api();
    tolerate(api, api.set_device(running.front()->own.device));
    for (size_t size = first_size; size < end_size; ++size) {
        // NCCL connects ranks in their first call of a kind.
        for (int run = size == 0 ? -1 : 0; run < TimedCalls::kRuns; ++run) {
            for (size_t kind = 0; kind < TimedCalls::kKinds; ++kind) {
                SLIMWIRE_TRY(enqueue(kind, size, false, run >= 0));
                SLIMWIRE_TRY(enqueue(kind, size, true, run >= 0));
            }
        }
    }
    for (Trial* trial : running) {
        SLIMWIRE_TRY(trial->mark(nullptr));
    }
    return {};
}

void TrialBatch::clean_up() {
    for (Trial* trial : running) {
        trial->abort();
    }
}

Status enqueue_sizes(const std::shared_ptr<TrialBatch>& batch, AbortWatch* watch) {
    Status aborted =
        run_leavable(batch, steady_us() + batch->runtime.config.settings.agree_timeout_us, watch);
    for (Trial* trial : batch->running) {
        if (batch->left) {
            trial->own.ended = true;  // the thread waits for NCCL no longer
        } else if (!batch->status.ok()) {
            log_line(LogLevel::kWarn, log_prefix(trial->own) + ": " + batch->status.message());
        }
    }
    return aborted;
}

}  // namespace slimwire
