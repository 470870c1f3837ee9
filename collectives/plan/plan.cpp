#include "collectives/plan/plan.h"

#include <algorithm>

#include "codecs/ops/sketch.h"
#include "codecs/residual/feedback.h"
#include "collectives/algorithms/algorithms.h"
#include "collectives/dispatch/plan_stages.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/plan/comm_costs.h"
#include "collectives/plan/decision.h"

namespace slimwire {
namespace {

uint64_t hash_facts(const CallSignature& signature) noexcept {
    uint64_t hash = signature.count * 0x9e3779b97f4a7c15ull;
    hash ^= (static_cast<uint64_t>(signature.op) << 16 |
             static_cast<uint64_t>(signature.dtype) << 8 | static_cast<uint64_t>(signature.redop)) *
            0xc2b2ae3d27d4eb4full;
    hash ^= static_cast<uint64_t>(static_cast<uint32_t>(signature.root_or_peer)) *
            0x165667b19e3779f9ull;
    hash ^= signature.ranges_id * 0x9fb21c651e98df25ull;
    hash ^= signature.ordinal * 0xd6e8feb86659fd93ull;
    hash ^= hash >> 29;
    return hash | 1;  // 0 marks an empty slot
}

// Empty when the call can be compressed on this communicator at all, else the reason.
std::string why_native(const CallSignature& signature, const PlanShape& shape) {
    if (shape.ranks == 1) {
        return "one rank: nothing crosses a wire";
    }
    if (!shape.go) {
        return shape.native_reason;
    }
    if (reduces(signature.op) && signature.redop != RedOp::kSum && signature.redop != RedOp::kAvg &&
        signature.redop != RedOp::kPreMulSum) {
        return std::string(redop_name(signature.redop)) + " is not a sum";
    }
    if (signature.count <= 1) {
        return "at most one element";
    }
    return {};
}

}  // namespace

uint64_t Plan::tensor_bytes() const noexcept {
    return residual_bytes + (accordion.has_value() ? sizeof(SketchState) : 0);
}

bool exceeds(uint64_t bytes, const Settings& settings) noexcept {
    return settings.max_memory_bytes != 0 && bytes > settings.max_memory_bytes;
}

uint64_t elements_given(const CallSignature& signature, int ranks) noexcept {
    const bool blocks = signature.op == Op::kReduceScatter || signature.op == Op::kAllToAll ||
                        signature.op == Op::kScatter;
    return signature.count * (blocks ? static_cast<uint64_t>(ranks) : 1);
}

uint64_t message_bytes(const CallSignature& signature, int ranks) noexcept {
    const uint64_t bytes = signature.count * dtype_bytes(signature.dtype);
    switch (signature.op) {
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
        case Op::kGather:
        case Op::kScatter:
            return bytes * static_cast<uint64_t>(ranks);
        case Op::kAllReduce:
        case Op::kReduce:
        case Op::kBroadcast:
        case Op::kSend:
        case Op::kRecv:
            return bytes;
    }
    return bytes;
}

uint64_t native_wire_bytes(const CallSignature& signature, int ranks, int rank) noexcept {
    const uint64_t bytes = signature.count * dtype_bytes(signature.dtype);
    const uint64_t n = static_cast<uint64_t>(ranks);
    if (n <= 1) {
        return 0;
    }
    const bool at_root = rank == signature.root_or_peer;
    switch (signature.op) {
        case Op::kAllReduce:
            return 2 * (n - 1) * bytes / n;
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
            return (n - 1) * bytes;
        case Op::kScatter:
            return rank == kNeediestRank || at_root ? (n - 1) * bytes : 0;
        case Op::kReduce:
        case Op::kGather:
            return at_root ? 0 : bytes;
        case Op::kBroadcast:  // a chain that begins at the root
            return rank != kNeediestRank && (rank + 1) % ranks == signature.root_or_peer ? 0
                                                                                         : bytes;
        case Op::kSend:
            return bytes;
        case Op::kRecv:
            return 0;
    }
    return bytes;
}

namespace {

bool draws(const CodecSpec& codec, DType dtype) {
    const CodecTraits traits = codec.traits(dtype);
    return codec.params.rounding == static_cast<uint8_t>(Rounding::kStochastic) || traits.linear ||
           traits.low_rank || traits.by_step;
}

// Completes the plan with this algorithm, or says why not.
std::string try_algorithm(Algorithm algorithm,
                          const Decision& decision,
                          const PlanShape& shape,
                          const Config& config,
                          Plan* plan) {
    const CallSignature& signature = plan->signature;
    const Action& action = decision.action;
    if (std::string reason = why_not(algorithm, signature, shape, action, decision.segments);
        !reason.empty()) {
        return reason;
    }
    const bool estimates = action.error_feedback == ErrorFeedback::kEf21;
    const bool low_rank = algorithm == Algorithm::kLowRank;
    Layout layout = low_rank ? factored_layout(*action.codec, action.state_rank(),
                                               decision.matrices, signature.count)
                             : layout_of(algorithm, signature, shape, action,
                                         config.settings.slice_bytes, decision.segments);
    if (signature.count > 0) {
        const uint64_t block_bytes = signature.count * dtype_bytes(signature.dtype);
        reserve_workspace(static_cast<int64_t>(message_bytes(signature, shape.ranks) / block_bytes),
                          shape.ranks, &layout);
    }
    ExchangeSizes sizes = sizes_of(algorithm, layout, signature, shape);
    if (estimates) {
        plan->shared_estimate = sizes.shared_begin;
        sizes.residual_elems = sizes.estimate_elems;
    }
    // A receiver decides as its sender does.
    CallSignature sender = signature;
    sender.op = signature.op == Op::kRecv ? Op::kSend : signature.op;
    const uint64_t native = native_wire_bytes(sender, shape.ranks);
    if (sizes.wire_bytes >= native) {
        return std::string(algorithm_name(algorithm)) + " would send " +
               std::to_string(sizes.wire_bytes) + " bytes, native " + std::to_string(native);
    }
    // Pairwise exchanges between nodes of several ranks can send more over the slow link than
    // NCCL's ring, which leaves a node once.
    if (action.algorithm == Algorithm::kAuto && shape.scope == Scope::kInterNode &&
        shape.max_ranks_per_node > 1 && sizes.node_wire_bytes >= native) {
        return (algorithm == Algorithm::kHierarchical ? "" : "flat ") +
               std::string(algorithm_name(algorithm)) + " would send " +
               std::to_string(sizes.node_wire_bytes) + " bytes out of a node, a native ring " +
               std::to_string(native);
    }
    const ResidualType type = action.residual_type();
    const bool apart =
        action.error_feedback != ErrorFeedback::kNone && !estimates && sizes.residual_elems > 0 &&
        (action.error_feedback != ErrorFeedback::kEf14 || type != ResidualType::kFloat32);
    const uint64_t elems = stored_elems(type, sizes.residual_elems, sizes.residual_runs);
    const uint64_t state_bytes = (sizes.state_elems * sizeof(float) + 255) / 256 * 256;
    const uint64_t residual_bytes =
        state_bytes + (action.error_feedback == ErrorFeedback::kNone || sizes.residual_elems == 0
                           ? 0
                           : stored_residual_bytes(type, elems));
    const uint64_t aims_offset = (residual_bytes + 15) / 16 * 16;
    const uint64_t kept_bytes =
        estimates || layout.aim_bytes == 0
            ? residual_bytes
            : aims_offset + sizes.residual_runs * static_cast<uint64_t>(layout.aim_bytes);
    const uint64_t staging_offset = (sizes.scratch_bytes + 255) / 256 * 256;
    const uint64_t window_bytes = estimates || apart ? sizes.largest_run * sizeof(float) : 0;
    const uint64_t window_end =
        std::max((staging_offset + window_bytes + 15) / 16 * 16, kMomentBytes);
    // What adds up results for a controller comes when the exchange is done with the scratch.
    const uint64_t sketch_bytes =
        action.accordion.has_value()
            ? static_cast<uint64_t>(sketch_workspace_bytes(static_cast<int64_t>(signature.count)))
            : 0;
    const uint64_t exchange_bytes =
        estimates || low_rank ? window_end + static_cast<uint64_t>(shape.ranks) * sizeof(uint32_t)
        : apart               ? staging_offset + window_bytes
                              : sizes.scratch_bytes;
    const uint64_t scratch_bytes = std::max(exchange_bytes, sketch_bytes);
    const uint64_t control_bytes = action.accordion.has_value() ? sizeof(SketchState) : 0;
    const uint64_t needed = shape.committed_bytes + scratch_bytes + kept_bytes + control_bytes;
    if (exceeds(needed, config.settings)) {
        return std::to_string(needed) + " bytes of residuals and scratch exceed " +
               "SLIMWIRE_MAX_MEMORY of " + std::to_string(config.settings.max_memory_bytes);
    }
    plan->compressed = true;
    plan->algorithm = algorithm;
    // Both ends of a message have this, also where only one keeps a residual.
    plan->uses_error_feedback =
        action.error_feedback != ErrorFeedback::kNone || sizes.state_elems > 0;
    plan->tensor = plan->uses_error_feedback ? action.tensor : TensorBy::kAddress;
    // The steps of a graph are not seen.
    plan->capturable = plan->tensor != TensorBy::kStep;
    plan->error_feedback = residual_bytes == 0 ? ErrorFeedback::kNone : action.error_feedback;
    plan->start_call = action.start_step;
    plan->scratch_bytes = scratch_bytes;
    plan->residual_bytes = kept_bytes;
    plan->aims_offset = kept_bytes > residual_bytes ? aims_offset : 0;
    plan->aims = kept_bytes > residual_bytes;
    plan->staged_residual = apart;
    plan->staging_offset = staging_offset;
    plan->marks_offset = window_end;
    plan->residual_type = type;
    plan->residual_elems = elems;
    plan->state_bytes = state_bytes;
    plan->shared_elems = low_rank ? sizes.state_elems : estimates ? elems : 0;
    plan->layout = std::move(layout);
    const auto segment_draws = [&](const Segment& segment) {
        return !segment.raw() && draws(segment.codec, signature.dtype);
    };
    plan->draws = draws(*action.codec, signature.dtype) ||
                  std::any_of(decision.segments.begin(), decision.segments.end(), segment_draws) ||
                  (action.intra_codec.has_value() && draws(*action.intra_codec, signature.dtype)) ||
                  (apart && type != ResidualType::kFloat32);
    plan->random.seed = config.settings.seed;
    plan->random.tensor = static_cast<uint32_t>(hash_facts(signature) >> 32);
    return {};
}

}  // namespace

std::string codec_text(const Plan& plan) {
    std::vector<std::string> codecs;  // each once; messages may have thousands of pieces
    const auto add = [&](const std::string& codec) {
        if (std::find(codecs.begin(), codecs.end(), codec) == codecs.end()) {
            codecs.push_back(codec);
        }
    };
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            add(piece.codec.to_string());
        }
    }
    if (plan.layout.factored != nullptr) {
        add(plan.layout.factored->codec.to_string());
    }
    if (plan.layout.largest_raw_part() > 0) {
        add("raw");
    }
    std::string text;
    for (const std::string& codec : codecs) {
        text += (text.empty() ? "" : "+") + codec;
    }
    if (plan.layout.intra) {
        text += ", " + plan.layout.intra->to_string() + " inside nodes";
    }
    if (plan.error_feedback != ErrorFeedback::kNone) {
        text += std::string("+") + error_feedback_name(plan.error_feedback);
        if (plan.residual_type != ResidualType::kFloat32) {
            text += std::string(":") + residual_type_name(plan.residual_type);
        }
    }
    return text;
}

Plan* Plan::of_last_call() noexcept {
    for (const Rung& rung : ramp) {
        if (calls <= rung.until) {
            return rung.plan.get();
        }
    }
    return this;
}

Plan make_plan(const CallSignature& signature,
               const PlanShape& shape,
               const Config& config,
               const ParameterRanges* parameters) {
    Plan plan;
    plan.signature = signature;
    plan.reason = why_native(signature, shape);
    if (!plan.reason.empty()) {
        return plan;
    }
    if (signature.ordinal == 0) {
        plan.ordinals = ordinals_asked(signature, shape, config.policy);
    }
    const Decision decision = decide(signature, shape, config.policy, parameters);
    plan.rule = decision.rule;
    const Action& action = decision.action;
    if (!action.codec.has_value()) {
        plan.reason = decision.reason;
        return plan;
    }
    CostChoice choice;
    choice.algorithms = candidates(signature, shape, action, decision.segments);
    if (decision.segments.empty()) {
        choice = choose_by_costs(signature, shape, action, std::move(choice.algorithms));
    }
    plan.reason = std::move(choice.native);
    for (const Algorithm algorithm : choice.algorithms) {
        std::string reason = try_algorithm(algorithm, decision, shape, config, &plan);
        if (plan.compressed) {
            plan.reason = decision.reason + (choice.reason.empty() ? "" : ", " + choice.reason);
            std::string against = add_stages(action, shape, config, parameters, &plan);
            if (!against.empty()) {
                Plan native;
                native.signature = signature;
                native.rule = plan.rule;
                native.reason = std::move(against);
                return native;
            }
            return plan;
        }
        plan.reason += (plan.reason.empty() ? "" : "; ") + reason;
    }
    return plan;
}

Plan* PlanCache::find(const CallSignature& signature) const noexcept {
    if (slots_.empty()) {
        return nullptr;
    }
    const uint64_t hash = hash_facts(signature);
    const size_t mask = slots_.size() - 1;
    for (size_t i = hash >> 7 & mask;; i = (i + 1) & mask) {
        const Slot& slot = slots_[i];
        if (slot.hash == 0) {
            return nullptr;
        }
        if (slot.hash == hash && slot.plan->signature == signature) {
            return slot.plan.get();
        }
    }
}

void PlanCache::place(Slot slot) noexcept {
    size_t i = slot.hash >> 7 & (slots_.size() - 1);
    while (slots_[i].hash != 0) {
        i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = std::move(slot);
}

Plan* PlanCache::insert(Plan plan) {
    if (slots_.size() < 2 * (size_ + 1)) {
        std::vector<Slot> old = std::move(slots_);
        slots_ = std::vector<Slot>(old.empty() ? 64 : old.size() * 2);
        for (Slot& slot : old) {
            if (slot.hash != 0) {
                place(std::move(slot));
            }
        }
    }
    Slot slot{hash_facts(plan.signature), std::make_unique<Plan>(std::move(plan))};
    Plan* inserted = slot.plan.get();
    ++size_;
    passing_ += inserted->passing ? 1 : 0;
    place(std::move(slot));
    return inserted;
}

void PlanCache::drop_passing() {
    std::vector<Slot> old = std::move(slots_);
    slots_ = std::vector<Slot>(old.size());
    for (Slot& slot : old) {
        if (slot.hash != 0 && !slot.plan->passing) {
            place(std::move(slot));
        }
    }
    size_ -= passing_;
    passing_ = 0;
}

}  // namespace slimwire
