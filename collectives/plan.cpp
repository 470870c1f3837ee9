#include "collectives/plan.h"

#include "collectives/two_shot.h"

namespace slimwire {
namespace {

uint64_t hash_facts(const CallFacts& facts) noexcept {
    uint64_t hash = facts.count * 0x9e3779b97f4a7c15ull;
    hash ^= (static_cast<uint64_t>(facts.op) << 16 | static_cast<uint64_t>(facts.dtype) << 8 |
             static_cast<uint64_t>(facts.redop)) *
            0xc2b2ae3d27d4eb4full;
    hash ^=
        static_cast<uint64_t>(static_cast<uint32_t>(facts.root_or_peer)) * 0x165667b19e3779f9ull;
    hash ^= hash >> 29;
    return hash | 1;  // 0 marks an empty slot
}

bool reduces(Op op) noexcept {
    return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}

// Empty when the call can be compressed on this communicator at all, else the reason.
std::string why_native(const CallFacts& facts, const PlanShape& shape) {
    if (shape.ranks == 1) {
        return "one rank: nothing crosses a wire";
    }
    if (!shape.go) {
        return shape.native_reason;
    }
    if (facts.op != Op::kAllReduce) {
        return std::string(op_name(facts.op)) + " has no compressed form yet";
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

uint64_t native_wire_bytes(const CallFacts& facts, int ranks) noexcept {
    const uint64_t bytes = facts.count * dtype_bytes(facts.dtype);
    const uint64_t n = static_cast<uint64_t>(ranks);
    if (n <= 1) {
        return 0;
    }
    switch (facts.op) {
        case Op::kAllReduce:
            return 2 * (n - 1) * bytes / n;
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
            return (n - 1) * bytes;
        case Op::kReduce:
        case Op::kBroadcast:
        case Op::kGather:
        case Op::kScatter:
        case Op::kSend:
            return bytes;
        case Op::kRecv:
            return 0;
    }
    return bytes;
}

Plan make_plan(const CallFacts& facts, const PlanShape& shape, const Config& config) {
    Plan plan;
    plan.facts = facts;
    plan.reason = why_native(facts, shape);
    if (!plan.reason.empty()) {
        return plan;
    }
    const uint64_t bytes = message_bytes(facts, shape.ranks);
    const Rule* rule = config.policy.match(facts, bytes, shape.ranks, shape.scope);
    if (rule == nullptr) {
        plan.reason = "no rule matches";
        return plan;
    }
    plan.rule = rule->name;
    const std::string by_rule = "rule '" + rule->name + "'";
    const Action& action = rule->action;
    if (!action.codec.has_value() || action.algorithm == Algorithm::kNative) {
        plan.reason = by_rule + " says native";
        return plan;
    }
    if (bytes < action.min_bytes) {
        plan.reason = std::to_string(bytes) + " bytes are less than min_bytes of " + by_rule;
        return plan;
    }
    if (!action.codec->accepts(facts.dtype)) {
        plan.reason = action.codec->to_string() + " does not take " + dtype_name(facts.dtype);
        return plan;
    }
    if (!action.codec->reduces()) {
        plan.reason = action.codec->to_string() + " cannot reduce, which two_shot needs";
        return plan;
    }
    Layout layout = make_layout({Segment{0, facts.count, *action.codec}}, facts.dtype, shape.ranks,
                                config.settings.slice_bytes);
    const uint64_t wire = two_shot_wire_bytes(layout, shape.ranks);
    const uint64_t native = native_wire_bytes(facts, shape.ranks);
    if (wire >= native) {
        plan.reason = "two_shot would send " + std::to_string(wire) + " bytes, native " +
                      std::to_string(native);
        return plan;
    }
    // Flat two_shot between nodes of several ranks sends more over the slow link than NCCL's ring.
    if (action.algorithm == Algorithm::kAuto && shape.scope == Scope::kInterNode &&
        shape.max_ranks_per_node > 1) {
        const auto per_node = static_cast<uint64_t>(shape.max_ranks_per_node);
        const uint64_t remote = static_cast<uint64_t>(shape.ranks) - per_node;
        // All ranks of a node send each remote rank a slot, twice; a ring leaves the node once.
        const uint64_t node_wire =
            2 * per_node * remote * static_cast<uint64_t>(layout.total_slot_bytes);
        if (node_wire >= native) {
            plan.reason = "flat two_shot would send " + std::to_string(node_wire) +
                          " bytes out of a node, a native ring " + std::to_string(native);
            return plan;
        }
    }
    const uint64_t scratch_bytes = two_shot_scratch_bytes(layout, shape.ranks);
    const uint64_t residual_bytes = action.error_feedback == ErrorFeedback::kNone
                                        ? 0
                                        : two_shot_residual_bytes(layout, facts.count);
    const uint64_t needed = shape.committed_bytes + scratch_bytes + residual_bytes;
    if (config.settings.max_memory_bytes != 0 && needed > config.settings.max_memory_bytes) {
        plan.reason = std::to_string(needed) + " bytes of residuals and scratch exceed " +
                      "SLIMWIRE_MAX_MEMORY of " + std::to_string(config.settings.max_memory_bytes);
        return plan;
    }
    plan.compressed = true;
    plan.algorithm = Algorithm::kTwoShot;
    plan.error_feedback = action.error_feedback;
    plan.start_call = action.start_step;
    plan.scratch_bytes = scratch_bytes;
    plan.residual_bytes = residual_bytes;
    plan.layout = std::move(layout);
    plan.random.seed = config.settings.seed;
    plan.random.tensor = static_cast<uint32_t>(hash_facts(facts) >> 32);
    plan.reason = by_rule;
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

Plan* PlanCache::insert(Plan plan) {
    if (slots_.size() < 2 * (size_ + 1)) {
        std::vector<Slot> old = std::move(slots_);
        slots_ = std::vector<Slot>(old.empty() ? 64 : old.size() * 2);
        for (Slot& slot : old) {
            if (slot.hash != 0) {
                size_t i = slot.hash >> 7 & (slots_.size() - 1);
                while (slots_[i].hash != 0) {
                    i = (i + 1) & (slots_.size() - 1);
                }
                slots_[i] = std::move(slot);
            }
        }
    }
    const uint64_t hash = hash_facts(plan.facts);
    size_t i = hash >> 7 & (slots_.size() - 1);
    while (slots_[i].hash != 0) {
        i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i].hash = hash;
    slots_[i].plan = std::make_unique<Plan>(std::move(plan));
    ++size_;
    return slots_[i].plan.get();
}

}  // namespace slimwire
