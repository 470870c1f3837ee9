// What a policy says that it does not do: rules that no call reaches, or that leave calls native,
// and codecs that lose for good.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "codecs/low_rank/low_rank.h"
#include "collectives/policy/policy.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

// Operations whose calls carry a reduction; the others have RedOp::kNone.
constexpr uint32_t kReducingOps =
    bit_of(Op::kAllReduce) | bit_of(Op::kReduceScatter) | bit_of(Op::kReduce);
constexpr uint32_t kScopes = (1u << kScopeCount) - 1;

// A set of ranges of calls: the product of sets, as bits, and of closed intervals, none of them
// empty.
struct Box {
    enum Set { kOps, kDTypes, kRedOps, kScopes, kDimensions, kSetCount };
    std::array<uint32_t, kSetCount> sets;
    struct Interval {
        uint64_t low, high;
    };
    std::array<Interval, 2> intervals;  // bytes, ranks
};

bool is_empty(const Box& box) {
    return std::any_of(box.sets.begin(), box.sets.end(), [](uint32_t set) { return set == 0; }) ||
           std::any_of(box.intervals.begin(), box.intervals.end(),
                       [](const Box::Interval& one) { return one.low > one.high; });
}

Box box_of(const Match& match) {
    const uint32_t ops = match.parameters.any() ? kAllOps : kCarryingOps;
    return {{match.ops & ops, match.dtypes & kAllDTypes, match.redops & kAllRedOps,
             match.scope ? bit_of(*match.scope) : kScopes, match.parameters.dimensions},
            {{{match.min_bytes, match.max_bytes},
              {static_cast<uint64_t>(match.min_ranks), static_cast<uint64_t>(match.max_ranks)}}}};
}

// The calls that can exist among those a rule matches.
std::vector<Box> possible_calls(const Match& match) {
    std::vector<Box> boxes;
    for (const bool reducing : {true, false}) {
        Box box = box_of(match);
        box.sets[Box::kOps] &= reducing ? kReducingOps : ~kReducingOps;
        box.sets[Box::kRedOps] &= reducing ? ~bit_of(RedOp::kNone) : bit_of(RedOp::kNone);
        if (!is_empty(box)) {
            boxes.push_back(box);
        }
    }
    return boxes;
}

bool meet(Box a, const Box& b) {
    for (size_t i = 0; i < a.sets.size(); ++i) {
        a.sets[i] &= b.sets[i];
    }
    for (size_t i = 0; i < a.intervals.size(); ++i) {
        a.intervals[i] = {std::max(a.intervals[i].low, b.intervals[i].low),
                          std::min(a.intervals[i].high, b.intervals[i].high)};
    }
    return !is_empty(a);
}

// Appends `from` without `taken` to `out`: one piece for each side on which `from` sticks out, the
// rest narrowed to what is still common. Both must meet.
void subtract(Box from, const Box& taken, std::vector<Box>* out) {
    for (size_t i = 0; i < from.sets.size(); ++i) {
        Box piece = from;
        piece.sets[i] &= ~taken.sets[i];
        if (piece.sets[i] != 0) {
            out->push_back(piece);
        }
        from.sets[i] &= taken.sets[i];
    }
    for (size_t i = 0; i < from.intervals.size(); ++i) {
        const auto [low, high] = taken.intervals[i];
        if (from.intervals[i].low < low) {
            out->push_back(from);
            out->back().intervals[i].high = low - 1;
            from.intervals[i].low = low;
        }
        if (from.intervals[i].high > high) {
            out->push_back(from);
            out->back().intervals[i].low = high + 1;
            from.intervals[i].high = high;
        }
    }
}

// Bound on the pieces looked at; a rule cut into more counts as reachable.
constexpr size_t kMaxPieces = 4096;

// Whether communicators of every name that `narrow` takes are taken by `wide`, as far as equal
// conditions tell.
bool covers_names(const Match& wide, const Match& narrow) noexcept {
    const bool roles = wide.roles == 0 || (narrow.roles != 0 && (narrow.roles & ~wide.roles) == 0);
    return roles && (wide.comms.empty() || wide.comms == narrow.comms);
}

bool covers_directions(const Match& wide, const Match& narrow) noexcept {
    return wide.directions == 0 ||
           (narrow.directions != 0 && (narrow.directions & ~wide.directions) == 0);
}

// Empty when `rules[index]` can decide some call; else why not.
std::string why_unreachable(const std::vector<Rule>& rules, size_t index) {
    std::vector<Box> left = possible_calls(rules[index].match);
    if (left.empty()) {
        return "its match is empty";
    }
    std::string takers;
    for (size_t i = 0; i < index; ++i) {
        if (rules[i].off || !covers_names(rules[i].match, rules[index].match) ||
            !covers_all(rules[i].match.ordinals, rules[index].match.ordinals) ||
            !covers_directions(rules[i].match, rules[index].match) ||
            !rules[i].match.parameters.covers_but_for_dimensions(rules[index].match.parameters)) {
            continue;
        }
        const Box taken = box_of(rules[i].match);
        std::vector<Box> rest;
        bool took = false;
        for (const Box& box : left) {
            if (meet(box, taken)) {
                took = true;
                subtract(box, taken, &rest);
            } else {
                rest.push_back(box);
            }
        }
        if (rest.size() > kMaxPieces) {
            return {};
        }
        if (took) {
            takers += (takers.empty() ? "'" : ", '") + rules[i].name + "'";
        }
        left = std::move(rest);
        if (left.empty()) {
            return "earlier rules take all its calls: " + takers;
        }
    }
    return {};
}

template <class E>
std::string set_text(uint32_t set, int count, const char* (*name)(E)) {
    set &= (1u << count) - 1;
    if (set == (1u << count) - 1) {
        return "any";
    }
    std::string out;
    for (int i = 0; i < count; ++i) {
        if ((set >> i & 1u) != 0) {
            out += (out.empty() ? "" : "+") + std::string(name(static_cast<E>(i)));
        }
    }
    return out;
}

// Operations that the rule names and for which `allows` is false; those of a rule that names none
// only when it is for all.
template <class Allows>
uint32_t ops_without(const Rule& rule, const Allows& allows) {
    const uint32_t ops = rule.match.ops & kAllOps;
    uint32_t without = 0;
    for (int i = 0; i < kOpCount; ++i) {
        if ((ops >> i & 1u) != 0 && !allows(static_cast<Op>(i))) {
            without |= 1u << i;
        }
    }
    const bool named = ops != kAllOps && ops != (kAllOps & ~kNamedOnlyOps);
    return named || without == ops ? without : 0;
}

bool adds_up(const CodecSpec& codec) {
    const DType types[] = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};
    return std::any_of(std::begin(types), std::end(types), [&](DType type) {
        return codec.accepts(type) && codec.traits(type).linear;
    });
}

// Why the rule's algorithm takes its codec for no call; empty where it does for some
// (algorithms/algorithm.h, why_not()).
std::string why_refused(const Rule& rule) {
    const CodecSpec& codec = *rule.action.codec;
    const Algorithm algorithm = rule.action.algorithm;
    if (codec.params.row > 0 && codec.params.bits > 0) {
        return rule.action.error_feedback != ErrorFeedback::kNone
                   ? " goes by columns, which have no residuals"
               : algorithm != Algorithm::kAuto && algorithm != Algorithm::kDirect
                   ? " goes by the columns of whole messages; write direct or auto"
               : (rule.match.ops & kAllOps & ~(bit_of(Op::kAllReduce) | bit_of(Op::kReduce))) == 0
                   ? " goes by columns, which have no form of all-reduces and reduces"
                   : "";
    }
    switch (algorithm) {
        case Algorithm::kLowRank:
            return rule.action.low_rank() ? "" : " has no factors of low rank";
        case Algorithm::kSummable:
            return adds_up(codec) ? "" : " has encodings that do not add up";
        case Algorithm::kTwoShot:
            return codec.reduces() ? "" : " does not reduce in one pass; write sparse";
        case Algorithm::kSparse:
            return codec.reduces() ? " reduces in one pass; write two_shot" : "";
        default:
            return "";
    }
}

// Why every call that the rule takes is native all the same; empty where that is not so.
std::string why_all_native(const Rule& rule) {
    const Match& match = rule.match;
    if (const std::string why = why_refused(rule); !why.empty()) {
        return "compresses nothing: " + rule.action.codec->to_string() + why;
    }
    return rule.action.min_bytes > match.max_bytes
               ? "compresses nothing: its 'min_bytes' is above the 'bytes' that it matches"
           : match.max_ranks <= 1 ? "compresses nothing: one rank has nobody to send to"
           : rule.action.algorithm == Algorithm::kHierarchical && match.scope == Scope::kIntraNode
               ? "compresses nothing: hierarchical compresses between nodes, and its 'scope' is "
                 "inside one"
               : "";
}

// What the rule's algorithm and its error feedback leave native; empty for nothing.
std::string why_without_form(const Rule& rule) {
    const Action& action = rule.action;
    const Algorithm algorithm = action.algorithm != Algorithm::kAuto ? action.algorithm
                                : action.low_rank()                  ? Algorithm::kLowRank
                                                                     : Algorithm::kAuto;
    // By both factors of each block (algorithms/factored_blocks.h).
    const bool blocks = action.algorithm == Algorithm::kAuto && action.low_rank() &&
                        !autoencodes(*action.codec) &&
                        action.error_feedback == ErrorFeedback::kNone;
    const auto by_algorithm = [&](Op op) {
        return algorithm == Algorithm::kAuto || has_form(algorithm, op) ||
               (action.algorithm == Algorithm::kAuto && learns_from_answers(action, op)) ||
               (blocks && (is_point_to_point(op) || op == Op::kAllToAll || op == Op::kAllGather ||
                           op == Op::kReduceScatter));
    };
    const auto by_estimates = [&](Op op) {
        return rule.action.error_feedback != ErrorFeedback::kEf21 || has_estimates(algorithm, op);
    };
    const uint32_t formless = ops_without(rule, by_algorithm);
    const uint32_t others =
        ops_without(rule, [&](Op op) { return by_algorithm(op) && by_estimates(op); }) & ~formless;
    const auto leaves = [](uint32_t ops) {
        return "leaves " + set_text<Op>(ops, kOpCount, [](Op v) { return op_name(v); }) +
               " native: ";
    };
    std::string why;
    if (formless != 0) {
        constexpr uint32_t kAnswered =
            bit_of(Op::kAllToAll) | bit_of(Op::kAllGather) | bit_of(Op::kReduceScatter);
        const bool answered = action.algorithm == Algorithm::kAuto && action.low_rank() &&
                              autoencodes(*action.codec) && (formless & ~kAnswered) == 0;
        why = leaves(formless) + algorithm_name(algorithm) + " has no form of it" +
              (answered ? " without 'forward_calls'" : "");
    }
    if (others != 0) {
        why +=
            (why.empty() ? "" : "; ") + leaves(others) + "ef21 has no form of it" +
            (algorithm == Algorithm::kAuto ? "" : std::string(" by ") + algorithm_name(algorithm));
    }
    return why;
}

// Says that a codec of the rule needs error feedback and has none; empty where that is not so.
std::string why_lossy(const Rule& rule) {
    bool keeps = false;  // some call of it
    for (int i = 0; i < kOpCount; ++i) {
        const Op op = static_cast<Op>(i);
        keeps |= (rule.match.ops & bit_of(op)) != 0 && !carries_activations(rule.action, op);
    }
    if (!keeps) {
        return {};
    }
    DType dtype = DType::kFloat32;
    for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
        if ((rule.match.dtypes & bit_of(type)) != 0 && rule.action.codec->accepts(type)) {
            dtype = type;
            break;
        }
    }
    const std::optional<CodecSpec> codec = rule.action.codec_without_feedback(dtype);
    return !codec.has_value() ? ""
                              : "has no error feedback, which " + codec->to_string() +
                                    " needs: what an encoding loses is lost for good; accepted: " +
                                    (rule.name == kEnvironmentRule ? "SLIMWIRE_EF=ef14"
                                                                   : "error_feedback = \"ef14\"");
}

// Says that the rule's threshold is one that nobody chose; empty where that is not so. Of what
// reaches a fixed one those that have room are the first, in every call.
std::string why_starved(const CodecSpec& codec) {
    constexpr std::string_view kThreshold = "threshold";
    const bool chosen = codec.codec->name != kThreshold || codec.params.refresh > 0 ||
                        codec.params.threshold != parse_codec(kThreshold).value().params.threshold;
    return chosen ? ""
                  : "has " + codec.to_string() +
                        ", whose threshold is not chosen: where more reach it than have room the "
                        "last ones are never sent; accepted: refresh=1000, by which it follows the "
                        "data, or threshold=";
}

}  // namespace

std::vector<std::string> policy_warnings(const Policy& policy, const Rule* only) {
    std::vector<std::string> warnings;
    for (size_t i = 0; i < policy.rules.size(); ++i) {
        const Rule& rule = policy.rules[i];
        if (rule.off || (only != nullptr && only != &rule)) {
            continue;
        }
        const std::string where =
            (rule.line > 0 ? policy.source + ":" + std::to_string(rule.line) : "environment") +
            ": rule '" + rule.name + "'";
        const std::string why = why_unreachable(policy.rules, i);
        if (!why.empty()) {
            warnings.push_back(where + " is never reached: " + why);
        } else if (compresses(rule)) {
            if (const std::string native = why_all_native(rule); !native.empty()) {
                warnings.push_back(where + " " + native);
            } else if (const std::string native = why_without_form(rule); !native.empty()) {
                warnings.push_back(where + " " + native);
            }
            if (const std::string lost = why_lossy(rule); !lost.empty()) {
                warnings.push_back(where + " " + lost);
            }
            if (const std::string starved = why_starved(*rule.action.codec); !starved.empty()) {
                warnings.push_back(where + " " + starved);
            }
        }
    }
    return warnings;
}

}  // namespace slimwire
