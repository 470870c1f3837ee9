#include "collectives/policy/policy.h"

#include <algorithm>

#include "codecs/low_rank/low_rank.h"
#include "codecs/pair_mode.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {
namespace {

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

// Whether the action says a key of this kind.
bool says_any(const Action& action, bool Key::*kind) {
    return std::any_of(action_keys().begin(), action_keys().end(),
                       [&](const Key& key) { return key.*kind && key.said_by(action); });
}

}  // namespace

bool compresses(const Rule& rule) noexcept {
    return !rule.off && rule.action.codec.has_value() &&
           rule.action.algorithm != Algorithm::kNative;
}

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
    return says_any(*this, &Key::switches_codec);
}

bool Action::counts_calls() const {
    return says_any(*this, &Key::counts_calls);
}

bool Action::needs_slot() const {
    return replicated_state() || counts_at_slot();
}

bool Action::counts_at_slot() const {
    return says_any(*this, &Key::needs_slot);
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
    order.again = static_cast<uint32_t>(count_of("recomputed"));
    order.skipped = static_cast<uint32_t>(count_of("early_stop"));
    order.stops_said = find("early_stop") != nullptr;
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

bool Policy::wants_rows() const noexcept {
    return std::any_of(rules.begin(), rules.end(),
                       [](const Rule& rule) { return compresses(rule) && learns_rows(rule); });
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

}  // namespace slimwire
