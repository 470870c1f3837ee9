#include "collectives/dispatch/plan_lookup.h"

#include <algorithm>

#include "collectives/algorithms/algorithm.h"
#include "collectives/call/hash.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/executor.h"
#include "collectives/dispatch/planner.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/plan/decision.h"

namespace slimwire {
namespace {

// Where a residual lies in the store follows from these.
uint64_t residual_shape(const Plan& plan, const PlanShape& shape) {
    std::string text = codec_text(plan) + ' ' + algorithm_name(plan.algorithm);
    const auto put = [&](uint64_t value) { text += ' ' + std::to_string(value); };
    put(static_cast<uint64_t>(plan.residual_type));
    put(plan.residual_elems);
    put(plan.residual_bytes);
    put(static_cast<uint64_t>(shape.ranks));
    for (const Slice& slice : plan.layout.slices) {
        put(slice.pieces.size());
        for (const Piece& piece : slice.pieces) {
            put(piece.offset_elems);
            put(static_cast<uint64_t>(piece.count));
            put(static_cast<uint64_t>(piece.chunk_elems));
            text += piece.codec.to_string() + (piece.has_residual ? "" : "!");
        }
    }
    if (plan.layout.factored != nullptr) {
        for (const LowRankMatrix& matrix : plan.layout.factored->factors.matrices) {
            put(static_cast<uint64_t>(matrix.element));
            put(static_cast<uint64_t>(matrix.rows));
            put(static_cast<uint64_t>(matrix.cols));
        }
    }
    if (plan.algorithm == Algorithm::kHierarchical && shape.nodes != nullptr) {
        for (int rank = 0; rank < shape.ranks; ++rank) {
            put(static_cast<uint64_t>(shape.nodes->node_of(rank)));
        }
    }
    return stable_hash(text);
}

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

// Makes and shows the counters of a plan's calls; `compressed` tells which of its two ways.
CallStats* add_counters(Session* state, const Plan& plan, bool compressed, std::string reason) {
    CallStats& key = state->stats->add_key();
    key.signature = plan.signature;
    key.rule = plan.rule;
    key.reason = std::move(reason);
    if (compressed && is_shadow(*state)) {
        key.reason = shadow_reason(plan);
        key.shadow_codec = codec_text(plan);
        key.shadow_algorithm = algorithm_name(plan.algorithm);
        key.shadow_wire_bytes_per_call = wire_bytes_of(plan, state->shape, state->rank);
        compressed = false;
    }
    key.codec = compressed ? codec_text(plan) : "native";
    key.algorithm = algorithm_name(compressed ? plan.algorithm : Algorithm::kNative);
    key.input_bytes_per_call = plan.signature.count * dtype_bytes(plan.signature.dtype);
    key.native_bytes_per_call = native_wire_bytes(plan.signature, state->shape.ranks, state->rank);
    key.wire_bytes_per_call =
        compressed ? wire_bytes_of(plan, state->shape, state->rank) : key.native_bytes_per_call;
    key.wire_is_estimate = !compressed;
    if (compressed) {
        for (const std::unique_ptr<CallHook>& hook : state->hooks) {
            hook->add_stats(plan, *state, &key);
        }
    }
    state->stats->publish(key);
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
        key->codec = key->algorithm = algorithm_name(Algorithm::kNative);
        key->reason = "native, and one of very many kinds of calls";
        key->wire_is_estimate = compressed == nullptr || is_shadow(*state);
        if (compressed != nullptr) {
            const bool observed = is_shadow(*state);
            key->rule = compressed->rule;
            (observed ? key->shadow_codec : key->codec) = codec_text(*compressed);
            (observed ? key->shadow_algorithm : key->algorithm) =
                algorithm_name(compressed->algorithm);
            key->reason = (observed ? shadow_reason(*compressed) : compressed->reason) +
                          ", one of very many kinds of calls";
        }
        key->folded = true;
        state->stats->publish(*key);
    }
    return key;
}

uint64_t input_bytes(const CallSignature& signature) noexcept {
    return signature.count * dtype_bytes(signature.dtype);
}

const char* fallback_text(FallbackReason fallback) noexcept {
    switch (fallback) {
        case FallbackReason::kBeforeStart:
            return "before start_step";
        case FallbackReason::kCapture:
            return "under stream capture";
        case FallbackReason::kBadBuffer:
            return "a buffer is null or not device memory";
        case FallbackReason::kUnknownOperator:
            return "the operator was not made on this communicator";
        case FallbackReason::kToItself:
            return "a message of a rank to itself";
        case FallbackReason::kBadRoot:
            return "the root or peer is no rank of the communicator";
        case FallbackReason::kUnplaced:
            return "its place in the step is not known";
        case FallbackReason::kNoMemory:
            return "its residual and those granted before exceed SLIMWIRE_MAX_MEMORY";
        case FallbackReason::kPhase:
            return "with error feedback, which counts in training only";
    }
    return "";
}

// What was granted to calls that come in the same order on all ranks that make them: the
// collectives of a communicator, or the messages of one peer and direction.
Session::Reservation& committed_of(Session* state, const CallSignature& signature) {
    return state->reserved[is_point_to_point(signature.op)
                               ? std::pair(static_cast<int>(signature.root_or_peer), signature.op)
                               : std::pair(-1, Op::kAllReduce)];
}

}  // namespace

bool grant_place(const Settings& settings,
                 Session* state,
                 const Plan& plan,
                 const StepPosition& place,
                 bool* first) {
    const PlaceKey key{&plan, place.slot, place.ordinal};
    *first = false;
    if (plan.residual_bytes == 0) {
        return true;
    }
    const auto [found, is_new] = state->memory_reservations.try_emplace(key, true);
    if (is_new) {
        *first = true;
        uint64_t& reserved = committed_of(state, plan.signature).residual_bytes;
        // A plan's first place is granted with the plan.
        const auto sibling = std::find_if(
            state->memory_reservations.begin(), state->memory_reservations.end(),
            [&](const auto& other) { return other.first.plan == &plan && other.first != key; });
        if (sibling != state->memory_reservations.end()) {
            const uint64_t tensor = plan.tensor_bytes();
            found->second = !exceeds(reserved + plan.scratch_bytes + tensor, settings);
            reserved += found->second ? tensor : 0;
        }
    }
    return found->second;
}

void ungrant_place(Session* state, const PlaceKey& key) noexcept {
    const auto found = state->memory_reservations.find(key);
    if (found == state->memory_reservations.end()) {
        return;
    }
    const bool granted = found->second;
    state->memory_reservations.erase(found);
    const bool last =
        std::none_of(state->memory_reservations.begin(), state->memory_reservations.end(),
                     [&](const auto& other) { return other.first.plan == key.plan; });
    if (granted && !last) {
        committed_of(state, key.plan->signature).residual_bytes -= key.plan->tensor_bytes();
    }
}

namespace {

Plan* with_controllers(Session* state, Plan* plan) {
    for (const std::shared_ptr<const ControllerRule>& rule : plan->controlled_by) {
        state->controllers.push_back(rule->make(plan, *state, &state->progress));
        plan->controllers.push_back(state->controllers.back().get());
    }
    return plan;
}

}  // namespace

Plan* plan_of(Runtime& runtime, Session* state, const CallSignature& signature, bool may_drop) {
    if (Plan* plan = state->plans.find(signature); plan != nullptr) {
        return plan;
    }
    Session::Reservation& reserved = committed_of(state, signature);
    state->shape.committed_bytes = reserved.residual_bytes;
    const ParameterRanges* const parameters =
        state->tracker != nullptr ? state->tracker->find(signature.ranges_id) : nullptr;
    Plan made = make_plan(signature, state->shape, runtime.config, parameters);
    const uint64_t native = native_wire_bytes(signature, state->shape.ranks, state->rank);
    // How many kinds of calls there are is a rank's own business, which peers it talks to, too. Of
    // those whose state others have a copy of, only such count as those others know of.
    const bool shares = made.replicated_state() || made.controller_bytes > 0;
    if ((shares ? reserved.sharing : state->plans.lasting()) < kMaxPlans) {
        reserved.sharing += shares ? 1 : 0;
        made.residual_shape = made.residual_bytes > 0 ? residual_shape(made, state->shape) : 0;
        Plan* plan = state->plans.insert(std::move(made));
        reserved.residual_bytes += plan->tensor_bytes();
        state->stats->plans = state->plans.size();
        plan->stats = add_counters(state, *plan, plan->compressed, plan->reason);
        for (const std::shared_ptr<Plan>& variant : plan->variants) {
            variant->residual_shape = plan->residual_shape;
            variant->stats = add_counters(state, *variant, variant->compressed, variant->reason);
        }
        return with_controllers(state, plan);
    }
    if (!made.compressed || shares) {
        folded_key(state, signature, nullptr)
            ->count_folded_call(input_bytes(signature), native, native);
        return nullptr;
    }
    if (may_drop && state->plans.passing() >= kMaxPlans) {
        state->plans.drop_passing();
    }
    // A residual of a tensor that does not come back would be memory for nothing.
    made.error_feedback = ErrorFeedback::kNone;
    made.residual_bytes = 0;
    made.staged_residual = false;
    made.parts.clear();
    made.variants.clear();
    for (std::shared_ptr<const ControllerRule>& rule : made.controlled_by) {
        rule = rule->without_variants();
    }
    std::erase(made.controlled_by, nullptr);
    made.passing = made.controlled_by.empty();
    Plan* plan = state->plans.insert(std::move(made));
    state->stats->plans = state->plans.size();
    plan->stats = folded_key(state, signature, plan);
    return with_controllers(state, plan);
}

void count_run(const Session& state, const Plan& plan) noexcept {
    if (plan.stats->folded) {
        const uint64_t native = native_wire_bytes(plan.signature, state.shape.ranks, state.rank);
        const uint64_t wire = wire_bytes_of(plan, state.shape, state.rank);
        const bool observed = is_shadow(state);
        if (observed) {
            plan.stats->folded_shadow_bytes.fetch_add(wire, std::memory_order_relaxed);
        }
        plan.stats->count_folded_call(input_bytes(plan.signature), native,
                                      observed ? native : wire);
    } else {
        plan.stats->count_call();
    }
}

void count_fallback(Session* state, Plan* plan, FallbackReason fallback) {
    if (plan->stats->folded) {
        const uint64_t native = native_wire_bytes(plan->signature, state->shape.ranks, state->rank);
        folded_key(state, plan->signature, nullptr)
            ->count_folded_call(input_bytes(plan->signature), native, native);
        return;
    }
    CallStats*& stats = plan->fallbacks[static_cast<size_t>(fallback)];
    if (stats == nullptr) {
        stats = add_counters(state, *plan, false, fallback_text(fallback));
    }
    stats->count_call();
}

}  // namespace slimwire
