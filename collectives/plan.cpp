#include "collectives/plan.h"

#include <algorithm>

#include "codecs/feedback.h"
#include "codecs/sketch.h"
#include "collectives/algorithms.h"
#include "collectives/averaging.h"
#include "collectives/call_choice.h"
#include "collectives/comm_costs.h"
#include "collectives/decision.h"
#include "collectives/error_budget.h"
#include "collectives/estimates_of_all.h"
#include "collectives/gate.h"

namespace slimwire {
namespace {

uint64_t hash_facts(const CallFacts& facts) noexcept {
    uint64_t hash = facts.count * 0x9e3779b97f4a7c15ull;
    hash ^= (static_cast<uint64_t>(facts.op) << 16 | static_cast<uint64_t>(facts.dtype) << 8 |
             static_cast<uint64_t>(facts.redop)) *
            0xc2b2ae3d27d4eb4full;
    hash ^=
        static_cast<uint64_t>(static_cast<uint32_t>(facts.root_or_peer)) * 0x165667b19e3779f9ull;
    hash ^= facts.asked;
    hash ^= facts.carried * 0x9fb21c651e98df25ull;
    hash ^= facts.nth * 0xd6e8feb86659fd93ull;
    hash ^= facts.role * 0xa0761d6478bd642full;
    hash ^= facts.ranges * 0xe7037ed1a0b428dbull;
    hash ^= hash >> 29;
    return hash | 1;  // 0 marks an empty slot
}

// Empty when the call can be compressed on this communicator at all, else the reason.
std::string why_native(const CallFacts& facts, const PlanShape& shape) {
    if (shape.ranks == 1) {
        return "one rank: nothing crosses a wire";
    }
    if (!shape.go) {
        return shape.native_reason;
    }
    if (reduces(facts.op) && facts.redop != RedOp::kSum && facts.redop != RedOp::kAvg &&
        facts.redop != RedOp::kPreMulSum) {
        return std::string(redop_name(facts.redop)) + " is not a sum";
    }
    if (facts.count <= 1) {
        return "at most one element";
    }
    return {};
}

}  // namespace

bool exceeds(uint64_t bytes, const Settings& settings) noexcept {
    return settings.max_memory_bytes != 0 && bytes > settings.max_memory_bytes;
}

uint64_t elements_given(const CallFacts& facts, int ranks) noexcept {
    const bool blocks =
        facts.op == Op::kReduceScatter || facts.op == Op::kAllToAll || facts.op == Op::kScatter;
    return facts.count * (blocks ? static_cast<uint64_t>(ranks) : 1);
}

uint64_t message_bytes(const CallFacts& facts, int ranks) noexcept {
    const uint64_t bytes = facts.count * dtype_bytes(facts.dtype);
    switch (facts.op) {
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

uint64_t native_wire_bytes(const CallFacts& facts, int ranks, int rank) noexcept {
    const uint64_t bytes = facts.count * dtype_bytes(facts.dtype);
    const uint64_t n = static_cast<uint64_t>(ranks);
    if (n <= 1) {
        return 0;
    }
    const bool at_root = rank == facts.root_or_peer;
    switch (facts.op) {
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
            return rank != kNeediestRank && (rank + 1) % ranks == facts.root_or_peer ? 0 : bytes;
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

// What a call decides by its own configuration.
Decision of_choice(const Action& asked, const CallFacts& facts, const PlanShape& shape) {
    Decision decision;
    decision.reason = "the call's own configuration";
    if (!shape.private_comm) {
        decision.reason += " counts where the policy can compress something";
    } else if (!asked.codec.has_value()) {
        decision.reason += " says native";
    } else if (!asked.codec->accepts(facts.dtype)) {
        decision.reason = asked.codec->to_string() + " does not take " + dtype_name(facts.dtype);
    } else {
        decision.action = asked;
    }
    return decision;
}

// A copy of `bytes` bytes: what lies before it, up to its alignment, and itself.
uint64_t copy_bytes_of(uint64_t bytes) noexcept {
    const uint64_t lines = (bytes + 15) / 16 * 16;
    return bytes == 0 ? 0 : lines - bytes + lines;
}

// Completes the plan with this algorithm, or says why not.
std::string try_algorithm(Algorithm algorithm,
                          const Decision& decision,
                          const PlanShape& shape,
                          const Config& config,
                          Plan* plan) {
    const CallFacts& facts = plan->facts;
    const Action& action = decision.action;
    if (std::string reason = why_not(algorithm, facts, shape, action, decision.segments);
        !reason.empty()) {
        return reason;
    }
    const bool estimates = action.error_feedback == ErrorFeedback::kEf21;
    const bool low_rank = algorithm == Algorithm::kLowRank;
    Layout layout = low_rank ? factored_layout(*action.codec, action.weights, action.state_rank(),
                                               decision.matrices, facts.count)
                             : layout_of(algorithm, facts, shape, action,
                                         config.settings.slice_bytes, decision.segments);
    if (facts.count > 0) {
        const uint64_t block_bytes = facts.count * dtype_bytes(facts.dtype);
        reserve_workspace(static_cast<int64_t>(message_bytes(facts, shape.ranks) / block_bytes),
                          shape.ranks, &layout);
    }
    ExchangeSizes sizes = sizes_of(algorithm, layout, facts, shape);
    if (estimates) {
        plan->shared_estimate = sizes.shared_begin;
        sizes.residual_elems = sizes.estimate_elems;
    }
    // A receiver decides as its sender does.
    CallFacts sender = facts;
    sender.op = facts.op == Op::kRecv ? Op::kSend : facts.op;
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
    const uint64_t window_offset = (sizes.scratch_bytes + 255) / 256 * 256;
    const uint64_t window_bytes = estimates || apart ? sizes.largest_run * sizeof(float) : 0;
    const uint64_t window_end =
        std::max((window_offset + window_bytes + 15) / 16 * 16, kMomentBytes);
    // What adds up results for a controller comes when the exchange is done with the scratch.
    const uint64_t sketch_bytes =
        action.accordion.has_value()
            ? static_cast<uint64_t>(sketch_workspace_bytes(static_cast<int64_t>(facts.count)))
            : 0;
    const uint64_t exchange_bytes =
        estimates || low_rank ? window_end + static_cast<uint64_t>(shape.ranks) * sizeof(uint32_t)
        : apart               ? window_offset + window_bytes
                              : sizes.scratch_bytes;
    const uint64_t tried_bytes = action.budget.has_value()
                                     ? probe_bytes(action.budget->ladder, facts.dtype, facts.count)
                                     : 0;
    const uint64_t scratch_bytes = std::max({exchange_bytes, sketch_bytes, tried_bytes});
    const uint64_t copy_bytes = action.roll_back ? copy_bytes_of(kept_bytes) : 0;
    const uint64_t needed = shape.committed_bytes + scratch_bytes + kept_bytes + copy_bytes;
    if (exceeds(needed, config.settings)) {
        return std::to_string(needed) + " bytes of residuals and scratch exceed " +
               "SLIMWIRE_MAX_MEMORY of " + std::to_string(config.settings.max_memory_bytes);
    }
    plan->compressed = true;
    plan->algorithm = algorithm;
    // Both ends of a message have this, also where only one keeps a residual.
    plan->feeds_back = action.error_feedback != ErrorFeedback::kNone || sizes.state_elems > 0;
    plan->tensor = plan->feeds_back ? action.tensor : TensorBy::kAddress;
    // Lossless waits on the host; the steps of a graph are not seen, nor the flags between replays.
    plan->capturable = algorithm != Algorithm::kLossless && plan->tensor != TensorBy::kStep &&
                       !(plan->feeds_back && action.roll_back);
    plan->error_feedback = residual_bytes == 0 ? ErrorFeedback::kNone : action.error_feedback;
    plan->start_call = action.start_step;
    plan->scratch_bytes = scratch_bytes;
    plan->residual_bytes = kept_bytes;
    plan->copy_bytes = copy_bytes;
    plan->aims_offset = kept_bytes > residual_bytes ? aims_offset : 0;
    plan->aims = kept_bytes > residual_bytes;
    plan->residuals_apart = apart;
    plan->window_offset = window_offset;
    plan->marks_offset = window_end;
    plan->residual_type = type;
    plan->residual_elems = elems;
    plan->state_bytes = state_bytes;
    plan->shared_elems = low_rank ? sizes.state_elems : estimates ? elems : 0;
    if (algorithm == Algorithm::kLossless && facts.op == Op::kAllReduce) {
        Plan half;
        half.facts = lossless_facts(facts, shape.ranks);
        half.algorithm = algorithm;
        half.layout = layout;
        plan->half = std::make_shared<const Plan>(std::move(half));
    }
    plan->layout = std::move(layout);
    const auto segment_draws = [&](const Segment& segment) {
        return !segment.raw() && draws(segment.codec, facts.dtype);
    };
    plan->draws = draws(*action.codec, facts.dtype) ||
                  std::any_of(decision.segments.begin(), decision.segments.end(), segment_draws) ||
                  (action.intra_codec.has_value() && draws(*action.intra_codec, facts.dtype)) ||
                  (apart && type != ResidualType::kFloat32);
    plan->random.seed = config.settings.seed;
    plan->random.tensor = static_cast<uint32_t>(hash_facts(facts) >> 32);
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
        text += plan.copy_bytes > 0 ? " with rollback" : "";
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

namespace {

bool same_chunks(const Chunks& a, const Chunks& b) {
    return a.count == b.count && a.chunk_elems == b.chunk_elems;
}

// Whether residuals lie alike with both plans, and mean the same.
bool keep_alike(const Plan& a, const Plan& b) {
    if (a.error_feedback != b.error_feedback || a.algorithm != b.algorithm ||
        a.residual_bytes != b.residual_bytes || a.residual_type != b.residual_type ||
        a.feeds_back != b.feeds_back || a.tensor != b.tensor || a.shared_elems != b.shared_elems ||
        a.layout.slices.size() != b.layout.slices.size()) {
        return false;
    }
    for (size_t i = 0; i < a.layout.slices.size(); ++i) {
        const auto& [of_a, of_b] = std::tie(a.layout.slices[i].pieces, b.layout.slices[i].pieces);
        if (!std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                        [](const Piece& one, const Piece& other) {
                            return same_chunks(one, other) &&
                                   one.offset_elems == other.offset_elems &&
                                   one.feeds == other.feeds;
                        })) {
            return false;
        }
    }
    return true;
}

// The plan that the call would have if change(Action*) had been made to its rule.
template <class Change>
Plan plan_after(const Plan& plan,
                const PlanShape& shape,
                const Config& config,
                const Carried* carried,
                const Change& change) {
    Config changed = config;
    for (Rule& rule : changed.policy.rules) {
        if (rule.name == plan.rule) {
            change(&rule.action);
            rule.action.average_every = 0;  // the plan's own do it
        }
    }
    return make_plan(plan.facts, shape, changed, carried);
}

// The plan that the call would have if the rule named the stage's codec.
std::shared_ptr<Plan> plan_of_stage(const RampStage& stage,
                                    const Plan& plan,
                                    const PlanShape& shape,
                                    const Config& config,
                                    const Carried* carried) {
    auto made = std::make_shared<Plan>();
    made->facts = plan.facts;
    made->rule = plan.rule;
    const std::string until = " until call " + std::to_string(stage.until);
    if (!stage.codec.has_value()) {
        made->reason = "native by its ramp" + until;
        return made;
    }
    Plan as_asked = plan_after(plan, shape, config, carried, [&](Action* action) {
        action->least_state_rank = action->low_rank() ? action->state_rank() : 0;
        action->codec = stage.codec;
        action->ramp.clear();
    });
    if (as_asked.compressed && keep_alike(as_asked, plan)) {
        as_asked.reason += ", its ramp" + until;
        *made = std::move(as_asked);
    } else {
        made->reason = "native" + until + ", because " + stage.codec->to_string() +
                       " of its ramp " +
                       (as_asked.compressed ? "keeps residuals otherwise than its codec"
                                            : "would not do: " + as_asked.reason);
    }
    return made;
}

// Where every rank's own residuals lie by the elements of its buffer.
void add_preview(const PreviewRule& rule, Plan* plan) {
    if (plan->residual_bytes == 0) {
        return;
    }
    if (plan->algorithm != Algorithm::kHierarchical && plan->tensor == TensorBy::kStep) {
        plan->preview = rule;
        plan->reason += plan->facts.op == Op::kReduceScatter ? ", gathers previewed"
                                                             : ", previewed where it is asked";
    } else {
        plan->reason += std::string(", no preview with ") + algorithm_name(plan->algorithm);
    }
}

// Completes a plan whose rule has a controller; what cannot be is why the call is native.
std::string add_low(const AccordionRule& rule,
                    const PlanShape& shape,
                    const Config& config,
                    const Carried* carried,
                    Plan* plan) {
    if (plan->tensor != TensorBy::kStep) {
        return "accordion without places in the step";
    }
    Plan low = plan_after(*plan, shape, config, carried, [&](Action* action) {
        action->codec = rule.low;
        action->accordion->window = 0;
    });
    const std::string text = "accordion's low " + rule.low.to_string();
    if (!low.compressed) {
        return text + " would not do: " + low.reason;
    }
    if (!keep_alike(low, *plan)) {
        return text + " keeps residuals otherwise than its codec";
    }
    low.reason += ", low compression of its accordion";
    plan->reason += ", high compression of its accordion";
    plan->accordion = rule;
    plan->low = std::make_shared<Plan>(std::move(low));
    return {};
}

// Completes a plan whose rule bounds the error; what cannot be is why the call is native.
std::string add_ladder(const ErrorBudgetRule& rule,
                       const PlanShape& shape,
                       const Config& config,
                       const Carried* carried,
                       Plan* plan) {
    if (plan->tensor != TensorBy::kStep) {
        return "max_error without places in the step";
    }
    if (plan->facts.redop != RedOp::kSum && plan->facts.redop != RedOp::kAvg) {
        return "max_error, whose probes are sums or means";
    }
    const bool low_rank = plan->layout.factored != nullptr;
    if (!low_rank &&
        (plan->layout.slices.empty() || plan->layout.slices.front().pieces.size() != 1)) {
        return "max_error, and codecs of the call's parts differ";
    }
    for (const CodecSpec& codec : rule.ladder) {
        if (!codec.accepts(plan->facts.dtype)) {
            return "max_error's " + codec.to_string() + " does not take this type";
        }
    }
    for (size_t i = 0; i + 1 < rule.ladder.size(); ++i) {
        Plan rung = plan_after(*plan, shape, config, carried, [&](Action* action) {
            action->codec = rule.ladder[i];
            action->budget->every = 0;
        });
        const std::string text = "max_error's " + rule.ladder[i].to_string();
        if (!rung.compressed) {
            return text + " would not do: " + rung.reason;
        }
        if (!keep_alike(rung, *plan)) {
            return text + " keeps residuals otherwise than its codec";
        }
        rung.reason += ", by max_error";
        plan->ladder.push_back(std::make_shared<Plan>(std::move(rung)));
    }
    plan->budget = rule;
    auto probe = std::make_shared<Plan>();
    probe->facts = plan->facts;
    probe->rule = plan->rule;
    probe->reason = "probe of max_error";
    if (low_rank) {
        for (const std::shared_ptr<Plan>& rung : plan->ladder) {
            probe->factored.push_back(rung->layout.factored);
        }
        probe->factored.push_back(plan->layout.factored);
    }
    probe->scratch_bytes = low_rank
                               ? factor_probe_bytes(probe->factored)
                               : probe_bytes(rule.ladder, plan->facts.dtype, plan->facts.count);
    probe->random = plan->random;
    probe->budget = rule;
    plan->probe = std::move(probe);
    plan->reason += ", by max_error";
    return {};
}

// Both ends of a message make it, and no other rank hears of it.
void add_gate(const GateRule& rule, Plan* plan) {
    if (is_point_to_point(plan->facts.op)) {
        plan->reason += ", without a gate, because two ranks only know of a message";
        return;
    }
    auto native = std::make_shared<Plan>();
    native->facts = plan->facts;
    native->rule = plan->rule;
    native->reason = "timed by its gate";
    native->scratch_bytes = kGateScratchBytes;
    plan->scratch_bytes = std::max(plan->scratch_bytes, kGateScratchBytes);
    plan->gate = rule;
    plan->native = std::move(native);
    plan->reason += ", where that is faster";
}

}  // namespace

Plan make_plan(const CallFacts& facts,
               const PlanShape& shape,
               const Config& config,
               const Carried* carried) {
    Plan plan;
    plan.facts = facts;
    plan.reason = why_native(facts, shape);
    if (!plan.reason.empty()) {
        return plan;
    }
    const Action* asked = facts.asked == 0 ? nullptr : find_choice(facts.asked);
    if (asked == nullptr && facts.nth == 0) {
        plan.ordinals = ordinals_asked(facts, shape, config.policy);
        plan.asks_role = facts.role == 0 && role_asked(facts, shape, config.policy);
    }
    if (asked == nullptr && facts.ranges == 0) {
        plan.asks_ranges = ranges_asked(facts, shape, config.policy);
    }
    const Decision decision = asked != nullptr ? of_choice(*asked, facts, shape)
                                               : decide(facts, shape, config.policy, carried);
    plan.rule = decision.rule;
    const Action& action = decision.action;
    if (!action.codec.has_value()) {
        plan.reason = decision.reason;
        return plan;
    }
    CostChoice choice;
    choice.algorithms = candidates(facts, shape, action, decision.segments);
    if (decision.segments.empty()) {
        choice = choose_by_costs(facts, shape, action, std::move(choice.algorithms));
    }
    plan.reason = std::move(choice.native);
    for (const Algorithm algorithm : choice.algorithms) {
        std::string reason = try_algorithm(algorithm, decision, shape, config, &plan);
        if (plan.compressed) {
            plan.reason = decision.reason + (choice.reason.empty() ? "" : ", " + choice.reason);
            std::string reason_against;
            if (action.preview.has_value()) {
                add_preview(*action.preview, &plan);
            }
            if (action.average_every > 0) {
                reason_against = add_averaging(action, shape, config, &plan);
            }
            if (reason_against.empty() && action.accordion.has_value() &&
                action.accordion->window > 0) {
                reason_against = add_low(*action.accordion, shape, config, carried, &plan);
            }
            if (!reason_against.empty()) {
                Plan native;
                native.facts = facts;
                native.rule = plan.rule;
                native.reason = std::move(reason_against);
                return native;
            }
            if (action.budget.has_value() && action.budget->every > 0) {
                std::string reason_against =
                    add_ladder(*action.budget, shape, config, carried, &plan);
                if (!reason_against.empty()) {
                    Plan native;
                    native.facts = facts;
                    native.rule = plan.rule;
                    native.reason = std::move(reason_against);
                    return native;
                }
            }
            if (action.gate.has_value()) {
                add_gate(*action.gate, &plan);
            }
            for (const RampStage& stage : action.ramp) {
                plan.ramp.push_back(
                    {stage.until, plan_of_stage(stage, plan, shape, config, carried)});
            }
            return plan;
        }
        plan.reason += (plan.reason.empty() ? "" : "; ") + reason;
    }
    return plan;
}

Plan* PlanCache::find(const CallFacts& facts) const noexcept {
    if (slots_.empty()) {
        return nullptr;
    }
    const uint64_t hash = hash_facts(facts);
    const size_t mask = slots_.size() - 1;
    for (size_t i = hash >> 7 & mask;; i = (i + 1) & mask) {
        const Slot& slot = slots_[i];
        if (slot.hash == 0) {
            return nullptr;
        }
        if (slot.hash == hash && slot.plan->facts == facts) {
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
    Slot slot{hash_facts(plan.facts), std::make_unique<Plan>(std::move(plan))};
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
