#include "collectives/plan/decision.h"

#include <algorithm>

#include "codecs/base/number_text.h"
#include "collectives/plan/comm_costs.h"
#include "collectives/plan/plan.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

std::string named(const Rule& rule) {
    return "rule '" + rule.name + "'";
}

// Why a rule compresses no such call, and what of it would change that; null: nothing.
struct Native {
    std::string reason;
    const char* remedy = nullptr;
};

// Without a reason where the rule, null for none, compresses such a call.
Native why_native(const Rule* rule,
                  const CallSignature& signature,
                  const PlanShape& shape,
                  uint64_t bytes) {
    if (rule == nullptr) {
        return {"no rule matches"};
    }
    const Action& action = rule->action;
    if (!action.codec.has_value() || action.algorithm == Algorithm::kNative) {
        return {named(*rule) + " says native"};
    }
    // choose_by_costs() says what follows of calls that were calibrated.
    if (action.auto_bytes && known_costs(signature, shape, action).ways.empty()) {
        if (const std::string slower = why_slower(signature, shape, action); !slower.empty()) {
            return {slower + ", min_bytes of " + named(*rule) + " being auto", kMeasureOrSay};
        }
    }
    if (bytes < action.min_bytes) {
        return {std::to_string(bytes) + " bytes are less than min_bytes of " + named(*rule),
                "a smaller min_bytes"};
    }
    return action.codec->accepts(signature.dtype)
               ? Native()
               : Native{action.codec->to_string() + " does not take " + dtype_name(signature.dtype),
                        "a codec that takes the type"};
}

std::string percent(uint64_t elems, uint64_t count) {
    return general_text(100.0 * static_cast<double>(elems) / static_cast<double>(count), 3) + " %";
}

// The matrices of a message whose ranges `ranges` (of parameters, or all of it without a shape)
// have a codec of low rank; without one that is worth it the call is native.
Decision with_matrices(Decision decision,
                       const std::vector<ParameterRange>& ranges,
                       const CallSignature& signature) {
    const CodecSpec codec = *decision.action.codec;
    const uint64_t count = signature.count;
    const bool learnt = learns_from_answers(decision.action, signature.op);
    const int64_t rank = decision.action.state_rank(), row = codec.params.row;
    bool shaped = false;  // some matrix was looked at
    uint64_t covered = 0;
    for (const ParameterRange& range : ranges) {
        const auto elems = static_cast<int64_t>(range.count);
        int64_t rows = 0, cols = 0;
        if (range.rows > 0 && range.dimensions > 1 && elems % range.rows == 0) {
            rows = range.rows;
            cols = elems / range.rows;
        } else if (range.dimensions == 0 && row > 0) {
            rows = elems / row;
            cols = row;
        } else {
            shaped |= range.dimensions == 1;
            continue;
        }
        shaped = true;
        // One that learns sends a factor, whose other one both ends have; of whole messages alone.
        const bool worth = learnt ? rows > 0 && 2 * rank < cols && ranges.size() == 1
                                  : worth_low_rank(rows, cols, rank);
        if (rows <= INT32_MAX && cols <= INT32_MAX && worth) {
            decision.matrices.push_back({static_cast<int64_t>(range.offset),
                                         static_cast<int32_t>(rows), static_cast<int32_t>(cols)});
            covered += static_cast<uint64_t>(rows * cols);
        }
    }
    if (decision.matrices.empty()) {
        Decision native;
        native.rule = decision.rule;
        native.reason =
            shaped ? "no matrix of it is twice as large as its factors of " + codec.to_string()
                   : "the shapes of its matrices are not known, and " + codec.to_string() +
                         " has no row";
        native.lacks_row = !shaped && is_point_to_point(signature.op);
        native.remedy = shaped ? "a smaller rank, or larger matrices"
                        : native.lacks_row
                            ? kTellRows
                            : "row= in the codec, or PyTorch's DDP, which tells the shapes";
        return native;
    }
    decision.reason += ", " + std::to_string(decision.matrices.size()) +
                       (decision.matrices.size() == 1 ? " matrix of " : " matrices of ") +
                       percent(covered, count);
    return decision;
}

// Of a message of `ranges`, which one rule decides about; null: no rule.
Decision of_one_rule(const Rule* rule,
                     const CallSignature& signature,
                     const PlanShape& shape,
                     const std::vector<ParameterRange>& ranges) {
    Decision decision;
    decision.rule = rule == nullptr ? "" : rule->name;
    Native native = why_native(rule, signature, shape, message_bytes(signature, shape.ranks));
    if (!native.reason.empty()) {
        decision.reason = std::move(native.reason);
        decision.remedy = native.remedy;
        return decision;
    }
    decision.action = rule->action;
    decision.reason = named(*rule);
    if (learns_rows(*rule) && is_point_to_point(signature.op)) {
        decision.action.codec->params.row = signature.row;
    }
    return decision.action.low_rank() ? with_matrices(std::move(decision), ranges, signature)
                                      : decision;
}

bool covers(const ParameterRanges& parameters, uint64_t count) {
    uint64_t end = 0;
    for (const ParameterRange& range : parameters.ranges) {
        if (range.offset != end || range.count > count - end) {
            return false;
        }
        end += range.count;
    }
    return end == count;
}

// What one rule has of a message.
struct Share {
    const Rule* rule = nullptr;  // null: no rule
    uint64_t elems = 0;
    Native raw;  // without a reason: its codec

    [[nodiscard]] bool coded() const noexcept { return raw.reason.empty(); }
    [[nodiscard]] bool fed() const noexcept {
        return coded() && rule->action.error_feedback != ErrorFeedback::kNone;
    }
};

// The largest of those that `counts` holds for, the first of equals; null for none.
template <class Counts>
const Share* largest(const std::vector<Share>& shares, const Counts& counts) {
    const Share* most = nullptr;
    for (const Share& share : shares) {
        if (counts(share) && (most == nullptr || share.elems > most->elems)) {
            most = &share;
        }
    }
    return most;
}

// Makes the message's one action; `notes` gets what of a rule gives way to another.
Action merge(const std::vector<Share>& shares, const Share& main, std::string* notes) {
    Action action = main.rule->action;
    action.min_bytes = 0;  // was asked of each rule
    action.auto_bytes = false;
    const Share* fed = largest(shares, [](const Share& share) { return share.fed(); });
    for (const Key& key : action_keys()) {
        if (key.leader == Leader::kOwn || !key.same_as.empty()) {
            continue;
        }
        const Share* leader = key.leader == Leader::kFed && fed != nullptr ? fed : &main;
        for (const Share& share : shares) {
            if (key.leader == Leader::kLargest && share.coded() &&
                key.of(share.rule->action).count() > key.of(leader->rule->action).count()) {
                leader = &share;
            }
        }
        const Value taken = key.of(leader->rule->action);
        key.put(taken, &action);
        for (const Share& share : shares) {
            if (!share.coded() || (key.leader == Leader::kFed && !share.fed()) ||
                (key.leader == Leader::kMain && !key.said_by(share.rule->action))) {
                continue;
            }
            if (const Value own = key.of(share.rule->action); own != taken) {
                *notes += "; " + std::string(key.name) + " " + own.text() + " of " +
                          named(*share.rule) + " gives way to " + taken.text() + " of " +
                          named(*leader->rule);
            }
        }
    }
    return action;
}

void append(std::vector<Segment>* segments, const Segment& next) {
    if (!segments->empty()) {
        Segment& last = segments->back();
        if (last.codec == next.codec && last.has_residual == next.has_residual) {
            last.count += next.count;
            return;
        }
    }
    segments->push_back(next);
}

// Lets small codec segments travel raw while there are many; how many of them did.
size_t drop_small_segments(std::vector<Segment>* segments) {
    size_t coded = 0;
    std::vector<size_t> small;
    for (size_t i = 0; i < segments->size(); ++i) {
        const Segment& segment = (*segments)[i];
        coded += segment.raw() ? 0 : 1;
        if (!segment.raw() && segment.count < kSmallSegment) {
            small.push_back(i);
        }
    }
    if (coded <= kManySegments || small.empty()) {
        return 0;
    }
    const size_t thinned = std::min(small.size(), coded - kManySegments);
    std::stable_sort(small.begin(), small.end(), [&](size_t a, size_t b) {
        return (*segments)[a].count < (*segments)[b].count;
    });
    for (size_t i = 0; i < thinned; ++i) {
        Segment& segment = (*segments)[small[i]];
        segment = Segment{segment.offset_elems, segment.count, {}, false};
    }
    std::vector<Segment> merged;
    for (const Segment& segment : *segments) {
        append(&merged, segment);
    }
    *segments = std::move(merged);
    return thinned;
}

// Calls use(rule) for each rule that may decide about a part of such a call, in order, until one
// decides about all that are left or use() returns false.
template <class Use>
void for_each_candidate(const CallSignature& signature,
                        const PlanShape& shape,
                        const Policy& policy,
                        const Use& use) {
    const uint64_t bytes = message_bytes(signature, shape.ranks);
    for (const Rule& rule : policy.rules) {
        if (rule.off ||
            !matches_call(rule.match, signature, bytes, shape.ranks, shape.scope, shape.name)) {
            continue;
        }
        const bool takes_all = rule.match.parameters.any() && !rule.match.asks_more(signature);
        if (!use(rule) || takes_all) {
            return;
        }
    }
}

// A native call that no rule takes, for `reason`: of the first rule with a codec that might have
// taken it, else of `asking`.
Decision of_none(const CallSignature& signature,
                 const PlanShape& shape,
                 const Policy& policy,
                 const Rule* asking,
                 std::string reason,
                 const char* remedy) {
    const Rule* const coded = first_with_codec(signature, shape, policy);
    const Rule* const rule = coded != nullptr ? coded : asking;
    Decision native;
    native.rule = rule != nullptr ? rule->name : "";
    native.reason = std::move(reason);
    native.remedy = coded != nullptr ? remedy : nullptr;
    return native;
}

// A message whose parameters are known, in parts by the rules that decide about them.
struct MessageParts {
    const std::vector<ParameterRange>& ranges;
    std::vector<Share> shares;
    std::vector<size_t> share_of;  // by range

    [[nodiscard]] const Share& of(size_t range) const noexcept { return shares[share_of[range]]; }
};

MessageParts parts_of(const CallSignature& signature,
                      const PlanShape& shape,
                      const Policy& policy,
                      const ParameterRanges& parameters) {
    const uint64_t bytes = message_bytes(signature, shape.ranks);
    MessageParts parts{parameters.ranges, {}, {}};
    for (const ParameterRange& range : parameters.ranges) {
        const Rule* rule =
            policy.match(signature, bytes, shape.ranks, shape.scope, &range, shape.name);
        const auto found = std::find_if(parts.shares.begin(), parts.shares.end(),
                                        [&](const Share& share) { return share.rule == rule; });
        parts.share_of.push_back(static_cast<size_t>(found - parts.shares.begin()));
        if (found == parts.shares.end()) {
            parts.shares.push_back({rule, 0, why_native(rule, signature, shape, bytes)});
        }
        parts.shares[parts.share_of.back()].elems += range.count;
    }
    return parts;
}

// Factors travel alone: no runs beside them, no factors of another rank, and none with residuals
// beside some without.
void leave_factors_alone(const Share& main, std::vector<Share>* shares) {
    const CodecSpec& codec = *main.rule->action.codec;
    const bool low_rank = main.rule->action.low_rank();
    for (Share& share : *shares) {
        const bool other =
            share.coded() && (*share.rule->action.codec != codec || share.fed() != main.fed());
        if (low_rank ? other : share.coded() && share.rule->action.low_rank()) {
            share.raw.reason = share.rule->action.codec->to_string() + " of " + named(*share.rule) +
                               " shares no message";
        }
    }
}

std::string native_reason(const std::vector<Share>& shares) {
    std::string reason;
    for (const Share& share : shares) {
        reason += (reason.empty() ? "" : "; ") + share.raw.reason;
    }
    return reason;
}

std::string shared_reason(const std::vector<Share>& shares, uint64_t count) {
    std::string reason;
    for (const Share& share : shares) {
        reason +=
            (reason.empty() ? "" : ", ") +
            (share.coded() ? named(*share.rule) + " for " : share.raw.reason + ", so raw, for ") +
            percent(share.elems, count);
    }
    return reason;
}

std::vector<ParameterRange> coded_ranges(const MessageParts& parts) {
    std::vector<ParameterRange> coded;
    for (size_t i = 0; i < parts.ranges.size(); ++i) {
        if (parts.of(i).coded()) {
            coded.push_back(parts.ranges[i]);
        }
    }
    return coded;
}

Decision with_segments(Decision decision, const MessageParts& parts) {
    std::vector<Segment>& segments = decision.segments;
    for (size_t i = 0; i < parts.ranges.size(); ++i) {
        const ParameterRange& range = parts.ranges[i];
        const Share& share = parts.of(i);
        Segment segment{range.offset, range.count, {}, false};
        if (share.coded()) {
            segment.codec = *share.rule->action.codec;
            segment.has_residual = share.fed();
        }
        if (range.count > 0) {
            append(&segments, segment);
        }
    }
    if (const size_t dropped = drop_small_segments(&segments); dropped > 0) {
        decision.reason +=
            "; " + std::to_string(dropped) + " small parts travel raw, because there are too many";
    }
    // Rules that say the same.
    if (segments.size() == 1 && !segments[0].raw()) {
        segments.clear();
    }
    return decision;
}

// Of a message that several rules share.
Decision of_shares(MessageParts parts, const CallSignature& signature) {
    const uint64_t count = signature.count;
    Decision decision;
    const Share* const main =
        largest(parts.shares, [](const Share& share) { return share.coded(); });
    if (main == nullptr) {
        decision.reason = native_reason(parts.shares);
        const Share* const willing =
            largest(parts.shares, [](const Share& share) { return share.raw.remedy != nullptr; });
        if (willing != nullptr) {
            decision.rule = willing->rule->name;
            decision.remedy = willing->raw.remedy;
        }
        return decision;
    }
    leave_factors_alone(*main, &parts.shares);
    std::string notes;
    decision.action = merge(parts.shares, *main, &notes);
    decision.rule = main->rule->name;
    for (const Share& share : parts.shares) {
        if (share.coded() && share.rule != main->rule) {
            decision.beside.push_back(share.rule->name);
        }
    }
    decision.reason = shared_reason(parts.shares, count) + notes;
    return decision.action.low_rank()
               ? with_matrices(std::move(decision), coded_ranges(parts), signature)
               : with_segments(std::move(decision), parts);
}

// Headers in front of messages of a pipeline are no activations.
bool may_answer(const Action& action, const CallSignature& signature) {
    return action.pair_order().calls > 0 || action.codec->accepts(signature.dtype);
}

// The first rule that asks for an ordinal or a direction that is not known of the call; null for
// none.
const Rule* asking_rule(const CallSignature& signature,
                        const PlanShape& shape,
                        const Policy& policy) {
    const Rule* asking = nullptr;
    for_each_candidate(signature, shape, policy, [&](const Rule& rule) {
        const bool asks =
            rule.match.asks_more(signature) ||
            (learns_from_answers(rule.action, signature.op) &&
             signature.direction == Direction::kUnknown && may_answer(rule.action, signature));
        asking = asks ? &rule : nullptr;
        return asking == nullptr;
    });
    return asking;
}

// Of a call whose parameters are not known.
Decision of_unknown(const CallSignature& signature, const PlanShape& shape, const Policy& policy) {
    const uint64_t bytes = message_bytes(signature, shape.ranks);
    const Rule* decided =
        policy.match(signature, bytes, shape.ranks, shape.scope, nullptr, shape.name);
    for (const Rule& rule : policy.rules) {
        if (&rule == decided) {
            break;
        }
        if (!rule.off &&
            matches_call(rule.match, signature, bytes, shape.ranks, shape.scope, shape.name)) {
            return of_none(signature, shape, policy, &rule,
                           "which parameters it carries is not known, and " + named(rule) + " asks",
                           "PyTorch's DDP, which tells them, or slimwire_register_parameter");
        }
    }
    ParameterRange whole;
    whole.count = signature.count;
    return of_one_rule(decided, signature, shape, {whole});
}

}  // namespace

std::vector<uint32_t> ordinals_asked(const CallSignature& signature,
                                     const PlanShape& shape,
                                     const Policy& policy) {
    std::vector<uint32_t> bounds;
    for_each_candidate(signature, shape, policy, [&](const Rule& rule) {
        for (const ParameterMatch::Indices& one : rule.match.ordinals) {
            bounds.insert(bounds.end(), {0, one.first});
            if (one.last != UINT32_MAX) {
                bounds.push_back(one.last + 1);
            }
        }
        return true;
    });
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    return bounds;
}

const Rule* direction_asked(const CallSignature& signature,
                            const PlanShape& shape,
                            const Policy& policy) {
    const Rule* asking = nullptr;
    if (signature.direction == Direction::kUnknown) {
        for_each_candidate(signature, shape, policy, [&](const Rule& rule) {
            // Such a rule has the order, too.
            const bool masks =
                (rule.action.pairs_masks() || answers_by_factors(rule.action, signature.op)) &&
                may_answer(rule.action, signature);
            const bool places = !rule.match.ordinals.empty() && rule.action.pair_order().calls > 0;
            if (masks || (asking == nullptr && (places || rule.match.directions != 0))) {
                asking = &rule;
            }
            return !masks;
        });
    }
    return asking;
}

const Rule* first_with_codec(const CallSignature& signature,
                             const PlanShape& shape,
                             const Policy& policy) {
    const Rule* found = nullptr;
    for_each_candidate(signature, shape, policy, [&](const Rule& rule) {
        found = rule.action.codec.has_value() ? &rule : nullptr;
        return found == nullptr;
    });
    return found;
}

Decision decide(const CallSignature& signature,
                const PlanShape& shape,
                const Policy& policy,
                const ParameterRanges* parameters) {
    if (const Rule* asking = asking_rule(signature, shape, policy); asking != nullptr) {
        const bool ordinal = !asking->match.ordinals.empty() && signature.ordinal == 0;
        const bool exchanged = asking->action.pair_order().calls > 0;
        return of_none(signature, shape, policy, asking,
                       (ordinal ? "its place in the step" : "its direction") +
                           (" is not known, and " + named(*asking)) + " asks",
                       ordinal     ? kMarkSteps
                       : exchanged ? "slimwire_mark_step in each step"
                                   : kMoreMessages);
    }
    if (parameters == nullptr) {
        return of_unknown(signature, shape, policy);
    }
    if (!covers(*parameters, signature.count)) {
        return of_none(signature, shape, policy, nullptr,
                       "the parameters said of it are not those of its elements",
                       "buffers that hold what was registered of them");
    }
    MessageParts parts = parts_of(signature, shape, policy, *parameters);
    return parts.shares.size() == 1
               ? of_one_rule(parts.shares[0].rule, signature, shape, parameters->ranges)
               : of_shares(std::move(parts), signature);
}

}  // namespace slimwire
