#include "collectives/dispatch/fallback.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/communicator/graph_memory.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/dispatch/call_pairs.h"
#include "collectives/dispatch/call_types.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/ring/state_ring.h"
#include "collectives/dispatch/thread_group.h"
#include "collectives/identity/parameter_tracker.h"
#include "collectives/plan/decision.h"

namespace slimwire {
namespace {

// The emulator refuses ordinary host memory as NCCL does, which a compressed call must not hide.
// Pinned memory both take, on any rank.
Result<bool> bad_buffer(const DeviceApi& api, const void* buffer) {
    if (buffer == nullptr || api.emulator == nullptr) {
        return buffer == nullptr;
    }
    cudaPointerAttributes attributes{};
    SLIMWIRE_TRY(cuda_status(api, api.pointer_get_attributes(&attributes, buffer), "buffer"));
    return attributes.type == cudaMemoryTypeUnregistered;
}

void undo_place(Communicator* state, uint64_t group, uint64_t) noexcept {
    session(state).places->drop(group);
}
void undo_grant(Communicator* state, uint64_t plan, uint64_t place) noexcept {
    ungrant_place(&session(state),
                  {pointer_of<const Plan>(plan), static_cast<uint32_t>(place >> 32),
                   static_cast<uint32_t>(place)});
}

// Asks for the place of a well-formed call, which counts it.
StepPosition place_of(const CallSignature& signature, Session* state) {
    const uint64_t number = group_number();
    if (in_group() && !thread_group().journal.has(state, undo_place)) {
        thread_group().journal.add(state, undo_place, number);
    }
    const ParameterRanges* const bucket =
        state->tracker != nullptr ? state->tracker->find(signature.ranges_id) : nullptr;
    return state->places->next(signature, bucket, number, state->stats.get());
}

void undo_pairing(Communicator* state, uint64_t group, uint64_t) noexcept {
    Session& of = session(state);
    for (auto& [peer, pairing] : of.pairs) {
        pairing.rewind(group);
    }
    if (of.rows != nullptr) {
        of.rows->rewind(group);
    }
}

// The group that a message is in, which takes back what it counts if it is dropped; 0: none.
uint64_t message_group(Session* state) {
    const uint64_t number = group_number();
    if (in_group() && !thread_group().journal.has(state, undo_pairing)) {
        thread_group().journal.add(state, undo_pairing, number);
    }
    return number;
}

// Counts a well-formed message or collective.
MessagePairing::Place pair_message(const CallSignature& signature,
                                   PairOrder order,
                                   Session* state) {
    const uint64_t number = message_group(state);
    const int ranks = state->shape.ranks;
    if (order.chunks > 1) {
        order.ranks = static_cast<uint32_t>(ranks);
        // From the last stage to the first goes what that one's next chunk begins with.
        const bool around =
            ranks > 2 && std::abs(state->rank - signature.root_or_peer) == ranks - 1;
        order.chunks -= around ? 1 : 0;
    }
    const Training& training = training_state();
    const bool message = is_point_to_point(signature.op);
    const auto kind_of = [&](Op op) {
        const uint64_t kind = mix_key(signature.count, static_cast<uint64_t>(signature.dtype));
        return message ? kind : mix_key(kind, static_cast<uint64_t>(op));
    };
    const MessagePairing::Place place =
        pairing_of(state, message ? signature.root_or_peer : Session::kCollectives)
            .next({.op = signature.op,
                   .kind = kind_of(signature.op),
                   .mark = training.marks.load(std::memory_order_acquire),
                   .group = number,
                   .training = training.training(),
                   .asked = kind_of(answered_by(signature.op))},
                  order);
    if (place.unlike) {
        const std::string where = log_prefix(*state);
        log_once(LogLevel::kWarn, where + " unlike",
                 where +
                     ": a marked step had other calls than 'forward_calls' and 'recomputed' of "
                     "its rule say, or may have had, and what answers what is not known: each has "
                     "positions of its own; where checkpointing may stop early the rule's "
                     "'early_stop' should say how many calls it leaves out, 0: none");
    }
    return place;
}

// An answer that both ends give positions of its own is planned as a message without a direction;
// of a collective each rank's message has its own (executor.cpp).
Result<Direction> direction_of(const DeviceApi& api,
                               const MessagePairing::Place& place,
                               const CollectiveCall& call,
                               Session* state) {
    if (!is_point_to_point(call.signature.op)) {
        return place.direction;
    }
    const auto masks =
        state->masks.find({call.signature.root_or_peer, place.forward, Session::Masked::kMessage});
    if (place.direction != Direction::kBackward || masks == state->masks.end()) {
        return place.direction;
    }
    SLIMWIRE_TRY_ASSIGN(const bool alone,
                        masks->second.explicit_positions(api, state, place.number));
    return alone ? Direction::kUnknown : place.direction;
}

// Whether the place of a call may have a residual, or the call needs none.
bool has_room(const Settings& settings,
              Session* state,
              const Plan& plan,
              const StepPosition& place) {
    bool first = false;
    const bool granted = grant_place(settings, state, plan, place, &first);
    if (first && in_group()) {
        thread_group().journal.add(state, undo_grant, word_of(&plan),
                                   uint64_t{place.slot} << 32 | place.ordinal);
    }
    return granted;
}

// Which way a call goes whose kind came so far (TypeClaims): native where `passing` says so, in a
// graph for ever, whatever the reason that will pass.
Result<std::optional<FallbackReason>> count_way(const DeviceApi& api,
                                                const CollectiveCall& call,
                                                Session* state,
                                                const Plan& plan,
                                                uint8_t way,
                                                std::optional<FallbackReason> passing) {
    bool captured = false;
    if (way != 0 || !plan.capturable) {
        SLIMWIRE_TRY_ASSIGN(captured, capturing(api, call.stream));
    }
    SLIMWIRE_TRY(count_graph_call(api, call.stream, state,
                                  {call.signature, captured, plan.capturable, way}));
    const bool native = passing.has_value() || !plan.capturable;
    return captured && native ? std::optional(FallbackReason::kCapture) : passing;
}

// As check_fallback(), for a well-formed call.
Result<std::optional<FallbackReason>> check_well_formed(Runtime& runtime,
                                                        const CollectiveCall& call,
                                                        Session* state,
                                                        const PlanEntry& entry,
                                                        AskedPlace* place) {
    const Plan& plan = *entry.plan;
    const DeviceApi& api = runtime.api();
    const bool message = is_point_to_point(call.signature.op);
    if (message && call.signature.root_or_peer == state->rank) {
        return std::optional(FallbackReason::kToItself);
    }
    // Of evaluation the steps of training know nothing.
    if (!training_state().training()) {
        if (plan.uses_error_feedback) {
            return std::optional(FallbackReason::kPhase);
        }
    } else if (state->places != nullptr && !place->asked &&
               (plan.uses_error_feedback || !message)) {
        *place = {place_of(call.signature, state), true, place->pair};
    }
    // Until it is known what they go on with.
    StateRing* const ring = dispatch_state(runtime).ring.get();
    const bool goes_on = plan.residual.bytes > 0 || plan.needs_slot || plan.draws.any;
    if (state->recalls && training_state().training() && goes_on &&
        ring->holds(state, call.signature.op)) {
        return count_way(api, call, state, plan, TypeClaims::kUnplaced, FallbackReason::kUnplaced);
    }
    if (!state->windows.empty() && on_windows(call, *state)) {
        return std::optional(FallbackReason::kWindow);
    }
    if (place->pair.answers_native) {
        return std::optional(FallbackReason::kAnswer);
    }
    uint8_t way = 0;
    for (Controller* controller : entry.controllers) {
        const bool native = controller->count(site_of(runtime, call, state, place->place));
        way = std::max(way, static_cast<uint8_t>(std::min<size_t>(controller->stages_left(),
                                                                  TypeClaims::kMostStages)));
        if (native) {
            return count_way(api, call, state, plan, way, FallbackReason::kBeforeStart);
        }
    }
    if (plan.needs_slot && !place->place.known()) {
        return count_way(api, call, state, plan, TypeClaims::kUnplaced, FallbackReason::kUnplaced);
    }
    if (place->place.known() && !has_room(runtime.config.settings, state, plan, place->place)) {
        return std::optional(FallbackReason::kNoMemory);
    }
    const bool counts = !plan.capturable || plan.needs_slot || !entry.controllers.empty() ||
                        (ring != nullptr && goes_on);
    return counts ? count_way(api, call, state, plan, way, std::nullopt)
                  : std::optional<FallbackReason>();
}

}  // namespace

std::pair<bool, bool> used_buffers(const CallSignature& signature, int rank) noexcept {
    const bool at_root = rank == signature.root_or_peer;
    switch (signature.op) {
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

bool grant_place(const Settings& settings,
                 Session* state,
                 const Plan& plan,
                 const StepPosition& place,
                 bool* first) {
    const PlaceKey key{&plan, place.slot, place.ordinal};
    *first = false;
    if (plan.residual.bytes == 0) {
        return true;
    }
    const auto [found, is_new] = state->granted.places.try_emplace(key, true);
    if (is_new) {
        *first = true;
        uint64_t& reserved = state->granted.of(plan.signature).residual_bytes;
        // A plan's first place is granted with the plan.
        const auto sibling = std::find_if(
            state->granted.places.begin(), state->granted.places.end(),
            [&](const auto& other) { return other.first.plan == &plan && other.first != key; });
        if (sibling != state->granted.places.end()) {
            const uint64_t tensor = plan.tensor_bytes();
            found->second = !exceeds(reserved + plan.scratch.bytes + tensor, settings);
            reserved += found->second ? tensor : 0;
        }
    }
    return found->second;
}

void ungrant_place(Session* state, const PlaceKey& key) noexcept {
    const auto found = state->granted.places.find(key);
    if (found == state->granted.places.end()) {
        return;
    }
    const bool granted = found->second;
    state->granted.places.erase(found);
    const bool last = std::none_of(state->granted.places.begin(), state->granted.places.end(),
                                   [&](const auto& other) { return other.first.plan == key.plan; });
    if (granted && !last) {
        state->granted.of(key.plan->signature).residual_bytes -= key.plan->tensor_bytes();
    }
}

Result<std::optional<FallbackReason>> malformed(const DeviceApi& api,
                                                const CollectiveCall& call,
                                                const Communicator& state) {
    const int root = call.signature.root_or_peer;
    if (root < 0 || root >= state.shape.ranks) {
        return std::optional(FallbackReason::kBadRoot);
    }
    const auto [sends, receives] = used_buffers(call.signature, state.rank);
    for (const auto& [used, buffer] : {std::pair(sends, call.send), {receives, call.recv}}) {
        if (!used || call.signature.count == 0) {
            continue;  // an empty one may be null on some ranks only
        }
        SLIMWIRE_TRY_ASSIGN(const bool bad, bad_buffer(api, buffer));
        if (bad) {
            return std::optional(FallbackReason::kBadBuffer);
        }
    }
    const bool unknown_operator =
        call.signature.redop == RedOp::kPreMulSum && scalar_of(state, call) == nullptr;
    return unknown_operator ? std::optional(FallbackReason::kUnknownOperator) : std::nullopt;
}

Result<std::optional<FallbackReason>> check_fallback(Runtime& runtime,
                                                     const CollectiveCall& call,
                                                     Session* state,
                                                     const PlanEntry& entry,
                                                     AskedPlace* place) {
    SLIMWIRE_TRY_ASSIGN(const std::optional<FallbackReason> refused,
                        malformed(runtime.api(), call, *state));
    if (refused.has_value()) {
        return refused;
    }
    SLIMWIRE_TRY_ASSIGN(const std::optional<FallbackReason> reason,
                        check_well_formed(runtime, call, state, entry, place));
    if (reason.has_value() && place->pair.waits && !is_point_to_point(call.signature.op)) {
        pairing_of(state, Session::kCollectives).stays_native();
    }
    return reason;
}

void undo_flags(Communicator* state, uint64_t, uint64_t) noexcept {
    session(state).skipped_steps->dropped();
}

Status hear_message(Runtime& runtime, const CollectiveCall& call, Session* state) {
    const CallSignature& signature = call.signature;
    if (signature.root_or_peer == state->rank || !state->rows->wants(signature)) {
        return {};
    }
    const DeviceApi& api = runtime.api();
    SLIMWIRE_TRY_ASSIGN(const std::optional<FallbackReason> refused, malformed(api, call, *state));
    if (refused.has_value()) {
        return {};
    }
    bool captured = false;
    if (MessageRows::may_be_header(signature)) {
        SLIMWIRE_TRY_ASSIGN(captured, capturing(api, call.stream));
        // Its other end must not read it, either.
        SLIMWIRE_TRY(
            count_graph_call(api, call.stream, state, {signature, captured, /*capturable=*/false}));
    }
    return state->rows->hear(api, state, call, captured, message_group(state));
}

StepPosition follow_native(Runtime& runtime, const CollectiveCall& call, Session* state) {
    // Of no elements, a buffer may be null on some ranks only.
    if (state->places == nullptr || call.signature.count == 0 ||
        is_point_to_point(call.signature.op) || !training_state().training()) {
        return {};
    }
    const Result<std::optional<FallbackReason>> refused = malformed(runtime.api(), call, *state);
    if (!refused.ok() || refused.value().has_value()) {
        return {};
    }
    if (SkippedSteps::may_tell(call.signature)) {
        state->skipped_steps->made(runtime.api(), state->device, call, state->stats.get());
        if (in_group()) {
            thread_group().journal.add(state, undo_flags);
        }
    }
    return place_of(call.signature, state);
}

namespace {

// Of a message whose plan has no row as messages have them that are told.
Status find_plan_of_row(Runtime& runtime,
                        Session* state,
                        CollectiveCall* call,
                        PlanEntry** entry,
                        const MessagePairing::Place& place) {
    static_assert(MessageRows::kAnswersLater == HeldMasks::kMost);
    SLIMWIRE_TRY_ASSIGN(const uint32_t row,
                        state->rows->next(runtime.api(), *state, call->signature, place));
    if (row != 0 && *entry != nullptr && (*entry)->plan->lacks_row) {
        call->signature.row = row;
        *entry = plan_of(runtime, state, call->signature, !in_group());
    }
    // What a native answer is to needs no memory any more.
    const bool native = *entry == nullptr || !(*entry)->plan->compressed;
    for (const Session::Masked kind : {Session::Masked::kMessage, Session::Masked::kCode}) {
        const auto held = state->masks.find({call->signature.root_or_peer, place.forward, kind});
        if (native && place.answers.has_value() && held != state->masks.end()) {
            held->second.answered(*place.answers);
        }
    }
    return {};
}

// As find_placed_plan(), of a well-formed call.
Status find_plan_by_place(
    Runtime& runtime, Session* state, CollectiveCall* call, PlanEntry** entry, AskedPlace* place) {
    const Plan& undirected = *(*entry)->plan;
    const bool exchanged = undirected.pairs.has_value() && undirected.pairs->calls > 0;
    // Each message of an exchange counts: some are too small to be compressed. Of collectives only
    // those that a rule compresses one way.
    const auto counts = [&](Direction direction) {
        CallSignature signature = call->signature;
        signature.direction = direction;
        const PlanEntry* const directed = plan_of(runtime, state, signature, false);
        const auto compressed = [&](uint32_t first) {
            signature.ordinal = first + 1;
            const PlanEntry* const placed = plan_of(runtime, state, signature, false);
            return placed != nullptr && placed->plan->compressed;
        };
        return directed != nullptr && (directed->plan->compressed ||
                                       std::any_of(directed->plan->ordinals.begin(),
                                                   directed->plan->ordinals.end(), compressed));
    };
    if (const std::optional<PairOrder>& order = undirected.pairs;
        order.has_value() &&
        (order->calls == 0 || is_point_to_point(call->signature.op) || undirected.compressed ||
         counts(Direction::kForward) || counts(Direction::kBackward))) {
        place->pair = pair_message(call->signature, *order, state);
        SLIMWIRE_TRY_ASSIGN(call->signature.direction,
                            direction_of(runtime.api(), place->pair, *call, state));
        if (call->signature.direction != Direction::kUnknown) {
            *entry = plan_of(runtime, state, call->signature, !in_group());
        }
        if (state->rows != nullptr && is_point_to_point(call->signature.op) && order->calls == 0) {
            SLIMWIRE_TRY(find_plan_of_row(runtime, state, call, entry, place->pair));
        }
    }
    if (*entry == nullptr || (*entry)->plan->ordinals.empty() || state->places == nullptr) {
        return {};
    }
    std::optional<uint32_t> ordinal = place->pair.ordinal;
    if (!exchanged) {
        if (training_state().training()) {
            *place = {place_of(call->signature, state), true, place->pair};
        }
        ordinal = place->place.known() ? std::optional(place->place.occurrence) : std::nullopt;
    }
    if (ordinal.has_value()) {
        const std::vector<uint32_t>& bounds = (*entry)->plan->ordinals;
        call->signature.ordinal =
            *(std::upper_bound(bounds.begin(), bounds.end(), *ordinal) - 1) + 1;
        *entry = plan_of(runtime, state, call->signature, !in_group());
    }
    return {};
}

}  // namespace

Status find_placed_plan(
    Runtime& runtime, Session* state, CollectiveCall* call, PlanEntry** entry, AskedPlace* place) {
    const bool to_itself =
        is_point_to_point(call->signature.op) && call->signature.root_or_peer == state->rank;
    if (to_itself) {
        return {};
    }
    const DeviceApi& api = runtime.api();
    SLIMWIRE_TRY_ASSIGN(const std::optional<FallbackReason> refused, malformed(api, *call, *state));
    if (refused.has_value()) {
        return {};
    }
    TypeClaims::GraphCall counted{call->signature};
    const bool unplaced_compressed = (*entry)->plan->compressed;
    SLIMWIRE_TRY(find_plan_by_place(runtime, state, call, entry, place));
    const bool compressed = *entry != nullptr && (*entry)->plan->compressed;
    if (call->signature == counted.signature || (!compressed && !unplaced_compressed)) {
        counted.way = TypeClaims::kUnplaced;
        SLIMWIRE_TRY_ASSIGN(counted.captured, capturing(api, call->stream));
    }
    counted.signature.ordinal = TypeClaims::kAnyPlace;
    return count_graph_call(api, call->stream, state, counted);
}

const PreMulScalar* scalar_of(const Communicator& state, const CollectiveCall& call) noexcept {
    for (const PreMulScalar& scalar : state.scalars) {
        if (scalar.op == call.nccl_op && scalar.dtype == call.signature.dtype) {
            return &scalar;
        }
    }
    return nullptr;
}

}  // namespace slimwire
