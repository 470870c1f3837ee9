// What the tables of constraints ask of a rule (policy_keys.cpp, answering_rules.cpp).
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "codecs/low_rank/low_rank.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {

inline bool native(const Rule& rule) {
    return !rule.action.codec || rule.action.algorithm == Algorithm::kNative;
}
inline bool low_rank(const Rule& rule) {
    return rule.action.low_rank();
}
inline bool feeds(const Rule& rule) {
    return rule.action.error_feedback != ErrorFeedback::kNone;
}
inline bool paired(const Rule& rule) {
    return !native(rule) && rule.action.pairs_masks();
}
inline bool paired(const std::optional<CodecSpec>& codec) {
    return codec.has_value() && codec->pairs_masks();
}
inline bool learns(const Rule& rule) {
    return goes_by_answers(rule) && autoencodes(*rule.action.codec);
}
template <Op... kOps>
bool only(const Rule& rule) {
    return (rule.match.ops & ~(bit_of(kOps) | ...)) == 0;
}
inline bool algorithm_other_than(const Rule& rule, Algorithm other) {
    return rule.action.algorithm != Algorithm::kAuto && rule.action.algorithm != other;
}
// Null where the rule does not say it.
inline const Value* said(const Rule& rule, std::string_view key, std::string_view field = {}) {
    const Value* value = rule.action.find(key);
    return value == nullptr || field.empty() ? value : value->find(field);
}
// Of rules whose calls answer each other, behind those of policy_keys.cpp.
[[nodiscard]] std::span<const Constraint> answer_constraints() noexcept;

}  // namespace slimwire
