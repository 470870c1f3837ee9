#include "collectives/dispatch/plan_lookup.h"

#include <algorithm>

#include "collectives/algorithms/algorithms.h"
#include "collectives/call/hash.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/executor.h"
#include "collectives/feedback/averaging.h"
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
            text += piece.codec.to_string() + (piece.feeds ? "" : "!");
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
bool only_observed(const CommState& state) noexcept {
    return state.observed != nullptr;
}

std::string shadow_reason(const Plan& plan) {
    return "SLIMWIRE_MODE is shadow; mode on: " + codec_text(plan) + " by " + plan.reason +
           (plan.algorithm == Algorithm::kLowRank
                ? "; its error is not tried, because factors follow from the data of all ranks"
                : "");
}

// Makes and shows the counters of a plan's calls; `compressed` tells which of its two ways.
KeyStats* show_key(CommState* state, const Plan& plan, bool compressed, std::string reason) {
    KeyStats& key = state->stats->add_key();
    key.facts = plan.facts;
    key.rule = plan.rule;
    key.reason = std::move(reason);
    if (compressed && only_observed(*state)) {
        key.reason = shadow_reason(plan);
        key.shadow_codec = codec_text(plan);
        key.shadow_algorithm = algorithm_name(plan.algorithm);
        key.shadow_wire_bytes_per_call = wire_bytes_of(plan, state->shape, state->rank);
        compressed = false;
    }
    key.codec = compressed ? codec_text(plan) : "native";
    key.algorithm = algorithm_name(compressed ? plan.algorithm : Algorithm::kNative);
    key.input_bytes_per_call = plan.facts.count * dtype_bytes(plan.facts.dtype);
    key.native_bytes_per_call = native_wire_bytes(plan.facts, state->shape.ranks, state->rank);
    key.wire_bytes_per_call =
        compressed ? wire_bytes_of(plan, state->shape, state->rank) : key.native_bytes_per_call;
    key.wire_is_estimate = !compressed;
    if (compressed && plan.averaging != nullptr) {
        key.averages = true;
        key.wire_bytes_per_averaging =
            averaging_wire_bytes(*plan.averaging, state->shape, state->rank);
    }
    key.previewed = compressed && plan.preview.has_value();
    state->stats->publish(key);
    if (log_enabled(LogLevel::kInfo)) {
        log_line(LogLevel::kInfo,
                 where(*state) + ": " + op_name(plan.facts.op) + " " +
                     dtype_name(plan.facts.dtype) + " " + redop_name(plan.facts.redop) + " count " +
                     std::to_string(plan.facts.count) + ": " + key.codec + " (" + key.reason + ")");
    }
    return &key;
}

// The counters that kinds of calls beyond kMaxPlans share.
KeyStats* folded_key(CommState* state, const CallFacts& facts, const Plan* compressed) {
    KeyStats*& key = state->folded[{facts.op, facts.dtype, facts.redop, compressed != nullptr}];
    if (key == nullptr) {
        key = &state->stats->add_key();
        key->facts = facts;
        key->facts.count = 0;
        key->facts.root_or_peer = 0;
        key->codec = key->algorithm = algorithm_name(Algorithm::kNative);
        key->reason = "native, and one of very many kinds of calls";
        key->wire_is_estimate = compressed == nullptr || only_observed(*state);
        if (compressed != nullptr) {
            const bool observed = only_observed(*state);
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

uint64_t input_bytes(const CallFacts& facts) noexcept {
    return facts.count * dtype_bytes(facts.dtype);
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
        case Detour::kToItself:
            return "a message of a rank to itself";
        case Detour::kBadRoot:
            return "the root or peer is no rank of the communicator";
        case Detour::kUnplaced:
            return "its place in the step is not known";
        case Detour::kNoMemory:
            return "its residual and those granted before exceed SLIMWIRE_MAX_MEMORY";
        case Detour::kPhase:
            return "with error feedback, which counts in training only";
    }
    return "";
}

// What was granted to calls that come in the same order on all ranks that make them: the
// collectives of a communicator, or the messages of one peer and direction.
CommState::Committed& committed_of(CommState* state, const CallFacts& facts) {
    return state->committed[is_point_to_point(facts.op)
                                ? std::pair(static_cast<int>(facts.root_or_peer), facts.op)
                                : std::pair(-1, Op::kAllReduce)];
}

}  // namespace

bool grant_place(const Settings& settings,
                 CommState* state,
                 const Plan& plan,
                 const StepPlace& place,
                 bool* first) {
    const PlaceKey key{&plan, place.slot, place.ordinal};
    *first = false;
    if (plan.residual_bytes == 0) {
        return true;
    }
    const auto [found, is_new] = state->granted_places.try_emplace(key, true);
    if (is_new) {
        *first = true;
        uint64_t& committed = committed_of(state, plan.facts).residual_bytes;
        // A plan's first place is granted with the plan.
        const auto sibling = std::find_if(
            state->granted_places.begin(), state->granted_places.end(),
            [&](const auto& other) { return other.first.plan == &plan && other.first != key; });
        if (sibling != state->granted_places.end()) {
            const uint64_t tensor = plan.tensor_bytes();
            found->second = !exceeds(committed + plan.scratch_bytes + tensor, settings);
            committed += found->second ? tensor : 0;
        }
    }
    return found->second;
}

void ungrant_place(CommState* state, const PlaceKey& key) noexcept {
    const auto found = state->granted_places.find(key);
    if (found == state->granted_places.end()) {
        return;
    }
    const bool granted = found->second;
    state->granted_places.erase(found);
    const bool last = std::none_of(state->granted_places.begin(), state->granted_places.end(),
                                   [&](const auto& other) { return other.first.plan == key.plan; });
    if (granted && !last) {
        committed_of(state, key.plan->facts).residual_bytes -= key.plan->tensor_bytes();
    }
}

namespace {

// A new plan whose calls are counted goes on where a process before was.
Plan* counted_on(CommState* state, Plan* plan) {
    if (plan->counted() && !is_point_to_point(plan->facts.op)) {
        const std::vector<std::byte> loaded =
            state->progress.take(counted_calls(*state, *plan), StateKind::kCalls);
        (void)RecordReader(loaded).get(&plan->calls);
    }
    return plan;
}

}  // namespace

Plan* plan_of(Runtime& runtime, CommState* state, const CallFacts& facts, bool may_drop) {
    if (Plan* plan = state->plans.find(facts); plan != nullptr) {
        return plan;
    }
    CommState::Committed& committed = committed_of(state, facts);
    state->shape.committed_bytes = committed.residual_bytes;
    const Carried* const carried =
        state->contents != nullptr ? state->contents->find(facts.carried) : nullptr;
    Plan made = make_plan(facts, state->shape, runtime.config, carried);
    const uint64_t native = native_wire_bytes(facts, state->shape.ranks, state->rank);
    // How many kinds of calls there are is a rank's own business, which peers it talks to, too. Of
    // those whose state others have a copy of, only such count as those others know of.
    const bool shares = made.shares_state() || made.low != nullptr;
    if ((shares ? committed.sharing : state->plans.lasting()) < kMaxPlans) {
        committed.sharing += shares ? 1 : 0;
        made.residual_shape = made.residual_bytes > 0 ? residual_shape(made, state->shape) : 0;
        Plan* plan = state->plans.insert(std::move(made));
        committed.residual_bytes += plan->tensor_bytes();
        state->stats->plans = state->plans.size();
        plan->stats = show_key(state, *plan, plan->compressed, plan->reason);
        if (plan->low != nullptr) {
            plan->low->residual_shape = plan->residual_shape;
            plan->low->stats = show_key(state, *plan->low, true, plan->low->reason);
        }
        for (const Rung& rung : plan->ramp) {
            rung.plan->residual_shape = plan->residual_shape;
            rung.plan->stats =
                show_key(state, *rung.plan, rung.plan->compressed, rung.plan->reason);
        }
        return counted_on(state, plan);
    }
    if (!made.compressed || shares) {
        folded_key(state, facts, nullptr)->count_folded_call(input_bytes(facts), native, native);
        return nullptr;
    }
    if (may_drop && state->plans.passing() >= kMaxPlans) {
        state->plans.drop_passing();
    }
    // A residual of a tensor that does not come back would be memory for nothing.
    made.error_feedback = ErrorFeedback::kNone;
    made.residual_bytes = 0;
    made.residuals_apart = false;
    made.averaging = nullptr;
    // Both ends of a message count its calls until the start; forgetting them would part the ends.
    made.passing = made.start_call == 0;
    made.ramp.clear();
    Plan* plan = state->plans.insert(std::move(made));
    state->stats->plans = state->plans.size();
    plan->stats = folded_key(state, facts, plan);
    return counted_on(state, plan);
}

void count_run(const CommState& state, const Plan& plan) noexcept {
    if (plan.stats->folded) {
        const uint64_t native = native_wire_bytes(plan.facts, state.shape.ranks, state.rank);
        const uint64_t wire = wire_bytes_of(plan, state.shape, state.rank);
        const bool observed = only_observed(state);
        if (observed) {
            plan.stats->folded_shadow_bytes.fetch_add(wire, std::memory_order_relaxed);
        }
        plan.stats->count_folded_call(input_bytes(plan.facts), native, observed ? native : wire);
    } else {
        plan.stats->count_call();
    }
}

void count_detour(CommState* state, Plan* plan, Detour detour) {
    if (plan->stats->folded) {
        const uint64_t native = native_wire_bytes(plan->facts, state->shape.ranks, state->rank);
        folded_key(state, plan->facts, nullptr)
            ->count_folded_call(input_bytes(plan->facts), native, native);
        return;
    }
    KeyStats*& stats = plan->detours[static_cast<size_t>(detour)];
    if (stats == nullptr) {
        stats = show_key(state, *plan, false, detour_reason(detour));
    }
    stats->count_call();
}

}  // namespace slimwire
