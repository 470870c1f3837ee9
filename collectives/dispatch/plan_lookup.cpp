#include "collectives/dispatch/plan_lookup.h"

#include <algorithm>

#include "collectives/algorithms/algorithm.h"
#include "collectives/call/hash.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/planner.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/plan/decision.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

// Whether calls that a plan compresses are native all the same, and what the plan says is counted
// beside them.
bool is_shadow(const Session& state) noexcept {
    return state.observed != nullptr;
}

std::string shadow_reason(const Plan& plan) {
    return "SLIMWIRE_MODE is shadow; mode on: " + codec_text(plan) + " by " + plan.reason +
           (plan.algorithm == Algorithm::kLowRank
                ? "; its error is not tried, because factors follow from the data of all ranks"
                : "");
}

// Why calls of a plan are compressed, or native.
struct Why {
    std::string reason;
    const char* remedy = nullptr;
    bool waits = false;
};

// By what calls go, or in mode shadow would go; null: natively.
void name_way(const Session& state, const Plan* compressed, std::string reason, CallStats* key) {
    key->codec = key->algorithm = algorithm_name(Algorithm::kNative);
    key->reason = std::move(reason);
    if (compressed != nullptr) {
        const bool observed = is_shadow(state);
        key->reason = observed ? shadow_reason(*compressed) : key->reason;
        (observed ? key->shadow_codec : key->codec) = codec_text(*compressed);
        (observed ? key->shadow_algorithm : key->algorithm) = algorithm_name(compressed->algorithm);
        key->lacks_feedback = compressed->lacks_feedback;
    }
}

// Makes and shows the counters of a plan's calls; `compressed` tells which of its two ways.
CallStats* add_counters(Session* state, const Plan& plan, bool compressed, Why why) {
    CallStats& key = state->stats->add_key();
    key.signature = plan.signature;
    key.rule = plan.rule;
    key.remedy = compressed ? nullptr : why.remedy;
    name_way(*state, compressed ? &plan : nullptr, std::move(why.reason), &key);
    if (compressed && is_shadow(*state)) {
        key.shadow_wire_bytes_per_call = wire_bytes_of(plan, state->shape, state->rank);
        compressed = false;
    }
    key.input_bytes_per_call = plan.signature.count * dtype_bytes(plan.signature.dtype);
    key.native_bytes_per_call = native_wire_bytes(plan.signature, state->shape.ranks, state->rank);
    key.wire_bytes_per_call =
        compressed ? wire_bytes_of(plan, state->shape, state->rank) : key.native_bytes_per_call;
    key.wire_is_estimate = !compressed;
    if (compressed) {
        for (const std::string& other : plan.beside) {
            state->stats->rule_compresses(other);
        }
        for (const std::unique_ptr<CallHook>& hook : state->hooks) {
            hook->add_stats(plan, *state, &key);
        }
    }
    state->stats->publish(key, why.waits);
    if (log_enabled(LogLevel::kInfo)) {
        log_line(LogLevel::kInfo, log_prefix(*state) + ": " + op_name(plan.signature.op) + " " +
                                      dtype_name(plan.signature.dtype) + " " +
                                      redop_name(plan.signature.redop) + " count " +
                                      std::to_string(plan.signature.count) + ": " + key.codec +
                                      " (" + key.reason + ")");
    }
    return &key;
}

// The counters that kinds of calls beyond kMaxPlans share.
CallStats* folded_key(Session* state, const CallSignature& signature, const Plan* compressed) {
    CallStats*& key =
        state->folded[{signature.op, signature.dtype, signature.redop, compressed != nullptr}];
    if (key == nullptr) {
        key = &state->stats->add_key();
        key->signature = signature;
        key->signature.count = 0;
        key->signature.root_or_peer = 0;
        key->wire_is_estimate = compressed == nullptr || is_shadow(*state);
        key->rule = compressed != nullptr ? compressed->rule : "";
        name_way(*state, compressed, compressed != nullptr ? compressed->reason : "native", key);
        key->reason += compressed != nullptr ? ", " : ", and ";
        key->reason += "one of very many kinds of calls";
        key->folded = true;
        state->stats->publish(*key);
    }
    return key;
}

// One call that goes by the plan; null: natively.
void count(const Session& state,
           const CallSignature& signature,
           const Plan* compressed,
           CallStats* stats) noexcept {
    if (!stats->folded) {
        return stats->count_call();
    }
    const uint64_t native = native_wire_bytes(signature, state.shape.ranks, state.rank);
    const uint64_t wire =
        compressed != nullptr ? wire_bytes_of(*compressed, state.shape, state.rank) : native;
    const bool observed = is_shadow(state);
    if (observed && compressed != nullptr) {
        stats->folded_shadow_bytes.fetch_add(wire, std::memory_order_relaxed);
    }
    stats->count_folded_call(signature.count * dtype_bytes(signature.dtype), native,
                             observed ? native : wire);
}

// Reports at the process's end may still show it.
const char* capture_remedy() {
    static const auto* const text = new std::string(
        "capture behind start_step, with steps marked, of a rule without " + uncaptured_keys());
    return text->c_str();
}

Why why_fallback(FallbackReason fallback) {
    switch (fallback) {
        case FallbackReason::kBeforeStart:
            return {"before start_step", "a smaller start_step, or more steps", true};
        case FallbackReason::kCapture:
            return {"under stream capture", capture_remedy()};
        case FallbackReason::kBadBuffer:
            return {"a buffer is null or not device memory", "buffers in device memory"};
        case FallbackReason::kUnknownOperator:
            return {"the operator was not made on this communicator",
                    "an operator made on the communicator"};
        case FallbackReason::kToItself:
            return {"a message of a rank to itself"};
        case FallbackReason::kBadRoot:
            return {"the root or peer is no rank of the communicator"};
        case FallbackReason::kUnplaced:
            return {"its place in the step is not known", kMarkSteps};
        case FallbackReason::kNoMemory:
            return {"its residual and those granted before exceed SLIMWIRE_MAX_MEMORY",
                    kMoreMemory};
        case FallbackReason::kPhase:
            return {"with error feedback, which counts in training only",
                    "slimwire_mark_phase(SLIMWIRE_TRAINING) before training", true};
        case FallbackReason::kWindow:
            return {"on symmetric windows, which NCCL's own kernels reach directly",
                    "buffers outside windows (ncclCommWindowRegister)"};
        case FallbackReason::kAnswer:
            return {"the call that it answers stayed native, and nothing is kept of it"};
    }
    return {};
}

PlanEntry* with_controllers(Session* state, PlanEntry* entry) {
    for (const std::shared_ptr<const ControllerRule>& rule : entry->plan->controlled_by) {
        state->controllers.push_back(rule->make(*entry, *state, &state->progress));
        entry->controllers.push_back(state->controllers.back().get());
    }
    return entry;
}

}  // namespace

PlanEntry* add_plan(Runtime& runtime,
                    Session* state,
                    const CallSignature& signature,
                    bool may_drop) {
    Session::Granted::OfKind& granted = state->granted.of(signature);
    state->shape.committed_bytes = granted.residual_bytes;
    const ParameterRanges* const parameters =
        state->tracker != nullptr ? state->tracker->find(signature.ranges_id) : nullptr;
    Plan made = make_plan(signature, state->shape, runtime.config, parameters);
    // How many kinds of calls there are is a rank's own business, which peers it talks to, too. Of
    // those whose state others have a copy of, or that variants and parts make one with the calls
    // of others, only such count as those others know of.
    const bool shares = made.replicated_state() || made.controller_bytes > 0;
    const bool alike = shares || !made.variants.empty() || !made.parts.empty();
    if ((alike ? granted.sharing : state->plans.lasting()) < kMaxPlans) {
        granted.sharing += alike ? 1 : 0;
        PlanEntry* entry = state->plans.insert(std::move(made));
        const Plan& plan = *entry->plan;
        granted.residual_bytes += plan.tensor_bytes();
        state->stats->plans = state->plans.size();
        entry->stats = add_counters(state, plan, plan.compressed, {plan.reason, plan.remedy});
        for (const std::shared_ptr<const Plan>& variant : plan.variants) {
            entry->variant_stats.push_back(add_counters(state, *variant, variant->compressed,
                                                        {variant->reason, variant->remedy, true}));
        }
        return with_controllers(state, entry);
    }
    // Its peers, which saw fewer kinds, count a call whose direction or ordinal decides.
    if ((!made.compressed && !made.asks_place()) || shares) {
        count(*state, signature, nullptr, folded_key(state, signature, nullptr));
        return nullptr;
    }
    if (may_drop) {
        drop_crowd(state);
    }
    Plan passing = without_residuals(std::move(made));
    // What is counted must not be forgotten.
    const bool may_pass = passing.controlled_by.empty();
    PlanEntry* entry = state->plans.insert(std::move(passing), may_pass);
    state->stats->plans = state->plans.size();
    entry->stats =
        folded_key(state, signature, entry->plan->compressed ? entry->plan.get() : nullptr);
    return with_controllers(state, entry);
}

void drop_crowd(Session* state) {
    if (state->plans.passing() >= kMaxPlans) {
        state->plans.drop_passing();
        state->stats->plans = state->plans.size();
    }
}

void count_native(const PlanEntry& entry, const Session& state) noexcept {
    count(state, entry.plan->signature, nullptr, entry.stats);
}

void count_run(const Session& state, const Plan& plan, CallStats* stats) noexcept {
    count(state, plan.signature, &plan, stats);
}

void count_fallback(Session* state, PlanEntry* entry, FallbackReason fallback) {
    const CallSignature& signature = entry->plan->signature;
    if (entry->stats->folded) {
        return count(*state, signature, nullptr, folded_key(state, signature, nullptr));
    }
    CallStats*& stats = entry->fallbacks[static_cast<size_t>(fallback)];
    if (stats == nullptr) {
        stats = add_counters(state, *entry->plan, false, why_fallback(fallback));
        if (fallback == FallbackReason::kCapture && !is_shadow(*state)) {
            log_once(LogLevel::kWarn, "captured " + state->stats->comm,
                     log_prefix(*state) + ": " + op_name(signature.op) + " count " +
                         std::to_string(signature.count) +
                         " is native in a graph, as its replays are not counted; it does not go on "
                         "once a rank that makes it outside of graphs counts so far");
        }
    }
    stats->count_call();
}

}  // namespace slimwire
