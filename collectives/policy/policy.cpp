#include "collectives/policy/policy.h"

#include <algorithm>

#include "codecs/low_rank/low_rank.h"
#include "codecs/pair_mode.h"
#include "collectives/policy/names.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

// Operations whose calls carry a reduction; the others have RedOp::kNone.
constexpr uint32_t kReducingOps =
    bit_of(Op::kAllReduce) | bit_of(Op::kReduceScatter) | bit_of(Op::kReduce);
constexpr uint32_t kScopes = (1u << kScopeCount) - 1;

// A set of ranges of calls: the product of five sets and two closed intervals, none of them empty.
struct Box {
    uint32_t ops, dtypes, redops, scopes, dimensions;
    uint64_t min_bytes, max_bytes;
    int min_ranks, max_ranks;
};

bool is_empty(const Box& box) {
    return box.ops == 0 || box.dtypes == 0 || box.redops == 0 || box.scopes == 0 ||
           box.dimensions == 0 || box.min_bytes > box.max_bytes || box.min_ranks > box.max_ranks;
}

Box box_of(const Match& match) {
    const uint32_t ops = match.parameters.any() ? kAllOps : kCarryingOps;
    return {match.ops & ops,
            match.dtypes & kAllDTypes,
            match.redops & kAllRedOps,
            match.scope ? bit_of(*match.scope) : kScopes,
            match.parameters.dimensions,
            match.min_bytes,
            match.max_bytes,
            match.min_ranks,
            match.max_ranks};
}

// The calls that can exist among those a rule matches.
std::vector<Box> possible_calls(const Match& match) {
    std::vector<Box> boxes;
    for (const bool reducing : {true, false}) {
        Box box = box_of(match);
        box.ops &= reducing ? kReducingOps : ~kReducingOps;
        box.redops &= reducing ? ~bit_of(RedOp::kNone) : bit_of(RedOp::kNone);
        if (!is_empty(box)) {
            boxes.push_back(box);
        }
    }
    return boxes;
}

bool meet(const Box& a, const Box& b) {
    return (a.ops & b.ops) != 0 && (a.dtypes & b.dtypes) != 0 && (a.redops & b.redops) != 0 &&
           (a.scopes & b.scopes) != 0 && (a.dimensions & b.dimensions) != 0 &&
           a.min_bytes <= b.max_bytes && b.min_bytes <= a.max_bytes && a.min_ranks <= b.max_ranks &&
           b.min_ranks <= a.max_ranks;
}

// Appends `from` without `taken` to `out`: one piece for each side on which `from` sticks out, the
// rest narrowed to what is still common. Both must meet.
void subtract(Box from, const Box& taken, std::vector<Box>* out) {
    const auto cut_set = [&](uint32_t Box::*member) {
        Box piece = from;
        piece.*member &= ~(taken.*member);
        if (!is_empty(piece)) {
            out->push_back(piece);
        }
        from.*member &= taken.*member;
    };
    const auto cut_interval = [&](auto Box::*low, auto Box::*high) {
        if (from.*low < taken.*low) {
            Box piece = from;
            piece.*high = taken.*low - 1;
            out->push_back(piece);
            from.*low = taken.*low;
        }
        if (from.*high > taken.*high) {
            Box piece = from;
            piece.*low = taken.*high + 1;
            out->push_back(piece);
            from.*high = taken.*high;
        }
    };
    cut_set(&Box::ops);
    cut_set(&Box::dtypes);
    cut_set(&Box::redops);
    cut_set(&Box::scopes);
    cut_set(&Box::dimensions);
    cut_interval(&Box::min_bytes, &Box::max_bytes);
    cut_interval(&Box::min_ranks, &Box::max_ranks);
}

// Bound on the pieces looked at; a rule cut into more counts as reachable.
constexpr size_t kMaxPieces = 4096;

bool matches_name(const Match& match, std::string_view comm) noexcept {
    if (match.roles != 0) {
        const std::optional<Role> role = role_of(comm);
        if (!role.has_value() || (match.roles & bit_of(*role)) == 0) {
            return false;
        }
    }
    return match.comms.empty() ||
           std::any_of(match.comms.begin(), match.comms.end(),
                       [&](const std::string& pattern) { return name_matches(pattern, comm); });
}

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

template <class E>
constexpr bool has(uint32_t set, E value) noexcept {
    return (set & bit_of(value)) != 0;
}

// By Algorithm: operations that it carries, those that it carries with ef21.
struct Forms {
    uint32_t ops = 0, estimate_ops = 0;
};
constexpr Forms kForms[] = {
    {},  // kAuto
    {},  // kNative
#define ALGORITHM(id, name, ops, estimate_ops) {ops, estimate_ops},
#include "collectives/policy/algorithms.def"
#undef ALGORITHM
};

bool compresses(const Rule& rule) noexcept {
    return !rule.off && rule.action.codec.has_value() &&
           rule.action.algorithm != Algorithm::kNative;
}

// Operations that the rule takes and can compress.
uint32_t carried_ops(const Rule& rule) noexcept {
    const Match& m = rule.match;
    const Algorithm algorithm = rule.action.algorithm;
    const uint32_t forms =
        algorithm == Algorithm::kAuto ? kAllOps : kForms[static_cast<size_t>(algorithm)].ops;
    return (m.redops & kCompressedRedOps) != 0 ? m.ops & forms : 0;
}

// Whether a match leaves no call of its operations on such communicators to later rules.
bool takes_all_calls(const Match& m, bool name_known) noexcept {
    return m.dtypes == kAllDTypes && m.redops == kAllRedOps && m.min_bytes == 0 &&
           m.max_bytes == ~0ull && m.parameters.any() && m.ordinals.empty() && m.directions == 0 &&
           (name_known || (m.comms.empty() && m.roles == 0));
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

// Why every call that the rule takes is native all the same; empty where that is not so.
std::string why_all_native(const Rule& rule) {
    const Match& match = rule.match;
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
        keeps |= has(rule.match.ops, op) && !carries_activations(rule.action, op);
    }
    if (!keeps) {
        return {};
    }
    DType dtype = DType::kFloat32;
    for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
        if (has(rule.match.dtypes, type) && rule.action.codec->accepts(type)) {
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

bool has_form(Algorithm algorithm, Op op) noexcept {
    return has(kForms[static_cast<size_t>(algorithm)].ops, op);
}

bool has_estimates(Algorithm algorithm, Op op) noexcept {
    return algorithm == Algorithm::kAuto
               ? std::any_of(std::begin(kForms), std::end(kForms),
                             [&](const Forms& forms) { return has(forms.estimate_ops, op); })
               : has(kForms[static_cast<size_t>(algorithm)].estimate_ops, op);
}

int Action::state_rank() const {
    int32_t rank = std::max<int32_t>(codec->params.kept, least_state_rank);
    for (const Key& key : action_keys()) {
        if (key.switches_codec) {
            key.of(*this).for_each_codec(
                [&](const CodecSpec& other) { rank = std::max<int32_t>(rank, other.params.kept); });
        }
    }
    return rank;
}

std::optional<CodecSpec> Action::codec_without_feedback(DType dtype) const {
    std::optional<CodecSpec> found;
    const auto look = [&](const CodecSpec& one) {
        if (!found.has_value() && one.traits(dtype).needs_feedback) {
            found = one;
        }
    };
    if (error_feedback != ErrorFeedback::kNone || !codec.has_value()) {
        return found;
    }
    look(*codec);
    if (intra_codec.has_value()) {
        look(*intra_codec);
    }
    for (const Key& key : action_keys()) {
        if (key.switches_codec) {
            key.of(*this).for_each_codec(look);
        }
    }
    return found;
}

bool Action::switches_codec() const {
    return std::any_of(action_keys().begin(), action_keys().end(),
                       [&](const Key& key) { return key.switches_codec && key.said_by(*this); });
}

bool Action::counts_calls() const {
    return std::any_of(action_keys().begin(), action_keys().end(),
                       [&](const Key& key) { return key.counts_calls && key.said_by(*this); });
}

bool Action::needs_slot() const {
    return replicated_state() || counts_at_slot();
}

bool Action::counts_at_slot() const {
    return std::any_of(action_keys().begin(), action_keys().end(),
                       [&](const Key& key) { return key.needs_slot && key.said_by(*this); });
}

const Value* Action::find(std::string_view key) const noexcept {
    const auto found = std::find_if(features.begin(), features.end(),
                                    [&](const auto& feature) { return feature.first == key; });
    return found == features.end() ? nullptr : &found->second;
}

uint64_t Action::count_of(std::string_view key) const noexcept {
    const Value* value = find(key);
    return value == nullptr ? 0 : value->count();
}

std::optional<CodecSpec> Action::codec_of(std::string_view key) const {
    const Value* value = find(key);
    return value == nullptr ? std::nullopt : value->codec();
}

PairOrder Action::pair_order() const noexcept {
    const Value* value = find("pairing");
    PairOrder order;
    if (value != nullptr && value->word() == "fifo") {
        order.kind = PairOrder::kFifo;
    } else if (value != nullptr && value->word() == "lifo") {
        order.kind = PairOrder::kLifo;
    } else if (value != nullptr && value->word().empty()) {
        order.chunks = static_cast<uint32_t>(value->real());
    }
    order.calls = static_cast<uint32_t>(count_of("forward_calls"));
    return order;
}

void Action::forget(std::string_view key) {
    std::erase_if(features, [&](const auto& feature) { return feature.first == key; });
}

bool Match::takes_ordinal(uint32_t ordinal) const noexcept {
    return ordinals.empty() || std::any_of(ordinals.begin(), ordinals.end(), [&](const auto& one) {
               return one.first <= ordinal && ordinal <= one.last;
           });
}

bool matches_call(const Match& m,
                  const CallSignature& signature,
                  uint64_t bytes,
                  int ranks,
                  Scope scope,
                  std::string_view comm) noexcept {
    return matches_name(m, comm) &&
           (signature.ordinal == 0 || m.takes_ordinal(signature.ordinal - 1)) &&
           (signature.direction == Direction::kUnknown || m.directions == 0 ||
            has(m.directions, signature.direction)) &&
           has(m.ops, signature.op) && has(m.dtypes, signature.dtype) &&
           has(m.redops, signature.redop) && m.min_bytes <= bytes && bytes <= m.max_bytes &&
           m.min_ranks <= ranks && ranks <= m.max_ranks && (!m.scope || *m.scope == scope) &&
           (m.parameters.any() || has(kCarryingOps, signature.op));
}

const Rule* Policy::match(const CallSignature& signature,
                          uint64_t bytes,
                          int ranks,
                          Scope scope,
                          const ParameterRange* range,
                          std::string_view comm) const noexcept {
    for (const Rule& rule : rules) {
        const ParameterMatch& parameters = rule.match.parameters;
        if (!rule.off && matches_call(rule.match, signature, bytes, ranks, scope, comm) &&
            !rule.match.asks_more(signature) &&
            (parameters.any() || (range != nullptr && parameters.matches(*range)))) {
            return &rule;
        }
    }
    return nullptr;
}

uint32_t averaged_roles(const Policy& policy) noexcept {
    uint32_t roles = 0;
    for (const Rule& rule : policy.rules) {
        const int role = compresses(rule) && autoencodes(*rule.action.codec)
                             ? averaged_role(rule.action.codec->params)
                             : -1;
        roles |= role < 0 ? 0 : 1u << role;
    }
    return roles;
}

uint32_t Policy::compressed_ops(int ranks,
                                std::optional<Scope> scope,
                                std::optional<std::string_view> comm) const noexcept {
    uint32_t ops = 0, native = 0;
    for (const Rule& rule : rules) {
        const Match& m = rule.match;
        const bool may = ranks > 1 && !rule.off && m.min_ranks <= ranks && ranks <= m.max_ranks &&
                         (!m.scope || !scope || *m.scope == *scope) &&
                         (!comm || matches_name(m, *comm));
        if (may && compresses(rule)) {
            ops |= carried_ops(rule) & ~native;
        } else if (may && (!m.scope || scope) && takes_all_calls(m, comm.has_value())) {
            native |= m.ops;
        }
    }
    const std::optional<Role> role = comm ? role_of(*comm) : std::nullopt;
    const uint32_t averaged = averaged_roles(*this);
    const bool averages =
        ranks > 1 && averaged != 0 && (!comm || (role && (averaged & bit_of(*role)) != 0));
    return averages ? ops | bit_of(Op::kAllReduce) : ops;
}

bool Policy::has_codec() const noexcept {
    return std::any_of(rules.begin(), rules.end(), compresses);
}

bool Policy::wants_progress() const noexcept {
    const auto alike = [](const std::optional<CodecSpec>& codec) {
        return codec.has_value() && codec->traits(DType::kFloat32).draws_alike;
    };
    return wants_pairs() || std::any_of(rules.begin(), rules.end(), [&](const Rule& rule) {
               const Action& action = rule.action;
               return compresses(rule) && (action.counts_calls() || action.low_rank() ||
                                           alike(action.codec) || alike(action.intra_codec));
           });
}

bool Policy::wants_pairs() const noexcept {
    return std::any_of(rules.begin(), rules.end(), [](const Rule& rule) {
        return compresses(rule) && (rule.action.pairs_masks() || goes_by_answers(rule));
    });
}

bool Policy::uses(std::string_view key) const noexcept {
    return std::any_of(rules.begin(), rules.end(), [&](const Rule& rule) {
        return compresses(rule) && rule.action.find(key) != nullptr;
    });
}

bool Policy::wants_steps() const noexcept {
    return std::any_of(rules.begin(), rules.end(), [](const Rule& rule) {
        const Action& action = rule.action;
        return (!rule.off && !rule.match.ordinals.empty()) ||
               (compresses(rule) &&
                (action.error_feedback != ErrorFeedback::kNone || action.needs_slot()));
    });
}

bool Policy::wants_parameters() const noexcept {
    return std::any_of(rules.begin(), rules.end(), [](const Rule& rule) {
        return !rule.off && (!rule.match.parameters.any() ||
                             (compresses(rule) && (rule.match.ops & bit_of(Op::kAllReduce)) != 0 &&
                              rule.action.needs_slot()));
    });
}

bool Policy::wants_parameter_names() const noexcept {
    return std::any_of(rules.begin(), rules.end(), [](const Rule& rule) {
        return !rule.off && !rule.match.parameters.names.empty();
    });
}

bool Policy::wants_names() const noexcept {
    return averaged_roles(*this) != 0 ||
           std::any_of(rules.begin(), rules.end(), [](const Rule& rule) {
               return !rule.off && (!rule.match.comms.empty() || rule.match.roles != 0);
           });
}

const Rule* Policy::find(std::string_view name) const noexcept {
    const auto found = std::find_if(rules.begin(), rules.end(),
                                    [&](const Rule& rule) { return rule.name == name; });
    return found == rules.end() ? nullptr : &*found;
}

std::string Policy::canonical() const {
    std::string out = "policy 2\n";
    for (const Rule& rule : rules) {
        if (rule.off) {
            continue;
        }
        for (const auto& [key, value] : match_values(rule.match)) {
            out += std::string(key) + "=" + value.canonical() + " ";
        }
        out += "->";
        for (const Key& key : action_keys()) {
            const Value value = key.of(rule.action);
            if (key.same_as.empty() && !value.absent()) {
                out += " " + std::string(key.name) + "=" + value.canonical();
            }
        }
        out += "\n";
    }
    return out;
}

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
            }
            if (const std::string native = why_without_form(rule); !native.empty()) {
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
