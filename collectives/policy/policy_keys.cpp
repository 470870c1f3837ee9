#include "collectives/policy/policy_keys.h"

#include <algorithm>
#include <cctype>

#include "codecs/low_rank/low_rank.h"
#include "codecs/pair_mode.h"
#include "collectives/policy/names.h"
#include "collectives/policy/rule_facts.h"

namespace slimwire {
namespace {

using Names = std::vector<std::string_view>;

Names auto_word() {
    return {"auto"};
}
Names pairing_words() {
    return {"auto", "fifo", "lifo"};
}
Names step_size_words() {
    return {"estimated", "told"};
}

// Accessors of a member that is an enumeration.
template <auto Member, auto NameOf>
Value get_word(const Action& action) {
    return word_value(NameOf(action.*Member));
}
template <auto Member, auto Parse>
bool set_word(const Value& value, Action* action) {
    const auto parsed = Parse(value.word());
    if (parsed) {
        action->*Member = *parsed;
    }
    return parsed.has_value();
}
template <auto Member>
Value get_codec(const Action& action) {
    return codec_value(action.*Member);
}
template <auto Member>
bool set_codec(const Value& value, Action* action) {
    action->*Member = value.codec();
    return true;
}

Value get_residual(const Action& action) {
    return action.error_feedback == ErrorFeedback::kNone
               ? Value()
               : word_value(residual_type_name(action.residual_type()));
}
bool set_residual(const Value& value, Action* action) {
    action->residual = value.absent() ? std::nullopt : parse_residual_type(value.word());
    return value.absent() || action->residual.has_value();
}
Value get_intra_codec(const Action& action) {
    return action.intra_codec ? value_of(*action.intra_codec) : Value();
}
Value get_start_step(const Action& action) {
    return value_of(action.start_step);
}
bool set_start_step(const Value& value, Action* action) {
    action->start_step = value.count();
    return true;
}
Value get_min_bytes(const Action& action) {
    return action.auto_bytes ? word_value("auto") : value_of(action.min_bytes);
}
bool set_min_bytes(const Value& value, Action* action) {
    action->auto_bytes = value.word() == "auto";
    action->min_bytes = value.count();
    return true;
}

constexpr auto get_feedback = get_word<&Action::error_feedback, error_feedback_name>;
constexpr auto set_feedback = set_word<&Action::error_feedback, parse_error_feedback>;

constexpr Key kRampFields[] = {{.name = "until", .kind = KeyKind::kCount},
                               {.name = "codec", .kind = KeyKind::kCodec}};
constexpr Key kAccordionFields[] = {
    {.name = "low", .kind = KeyKind::kCodec},
    {.name = "window", .kind = KeyKind::kCount, .least = 2},
    {.name = "ratio",
     .kind = KeyKind::kReal,
     .accepted = "a number from 1e-6 to 10",
     .least = 1e-6,
     .most = 10,
     .otherwise = "0.5"},
    {.name = "hysteresis", .kind = KeyKind::kCount, .least = 1, .most = 1000, .otherwise = "2"},
    {.name = "lr_drops",
     .kind = KeyKind::kAscending,
     .accepted = "ascending numbers of calls, like [58500, 97500]",
     .otherwise = ""}};
constexpr Key kStepAheadFields[] = {
    {.name = "gain",
     .kind = KeyKind::kReal,
     .accepted = "a number from 1e-6 to 100",
     .least = 1e-6,
     .most = 100,
     .otherwise = "1"},
    {.name = "step_size",
     .kind = KeyKind::kReal,
     .accepted =
         "\"estimated\", \"told\" (slimwire_set_learning_rate) or a number from 1e-12 to 1e12",
     .words = step_size_words,
     .least = 1e-12,
     .most = 1e12,
     .otherwise = "estimated"}};

constexpr Key kKeys[] = {
    {.name = "codec",
     .kind = KeyKind::kCodec,
     .get = get_codec<&Action::codec>,
     .set = set_codec<&Action::codec>,
     .leader = Leader::kOwn,
     .in_defaults = true},
    {.name = "algorithm",
     .kind = KeyKind::kWord,
     .words = algorithm_names,
     .get = get_word<&Action::algorithm, algorithm_name>,
     .set = set_word<&Action::algorithm, parse_algorithm>,
     .in_defaults = true},
    {.name = "error_feedback",
     .kind = KeyKind::kWord,
     .words = error_feedback_names,
     .get = get_feedback,
     .set = set_feedback,
     .leader = Leader::kFed,
     .in_defaults = true},
    {.name = "start_step",
     .kind = KeyKind::kCount,
     .accepted = "a number of steps, 0 or more",
     .range = "0 or more",
     .most = double(INT64_MAX),
     .get = get_start_step,
     .set = set_start_step,
     .leader = Leader::kLargest,
     .in_defaults = true,
     .counts_calls = true},
    {.name = "min_bytes",
     .kind = KeyKind::kBytes,
     .words = auto_word,
     .get = get_min_bytes,
     .set = set_min_bytes,
     .leader = Leader::kOwn,
     .in_defaults = true},
    {.name = "intra_codec",
     .kind = KeyKind::kCodec,
     .get = get_intra_codec,
     .set = set_codec<&Action::intra_codec>,
     .in_defaults = true},
    {.name = "ef",
     .kind = KeyKind::kWord,
     .words = error_feedback_names,
     .same_as = "error_feedback",
     .get = get_feedback,
     .set = set_feedback,
     .in_defaults = true},
    {.name = "residual",
     .kind = KeyKind::kWord,
     .words = residual_type_names,
     .get = get_residual,
     .set = set_residual,
     .leader = Leader::kFed,
     .in_defaults = true},
    {.name = "ramp",
     .kind = KeyKind::kStages,
     .accepted = "stages like [{ until = 500, codec = \"topk:fraction=0.1\" }]",
     .fields = kRampFields,
     .counts_calls = true,
     .switches_codec = true},
    {.name = "accordion",
     .kind = KeyKind::kTable,
     .accepted = "a table like { low = \"powersgd:rank=4\", window = 390 }, with ratio, hysteresis "
                 "and lr_drops",
     .fields = kAccordionFields,
     .counts_calls = true,
     .needs_slot = true,
     .switches_codec = true},
    {.name = "average_every",
     .kind = KeyKind::kCount,
     .accepted = "a number of calls of a tensor, 1 or more",
     .least = 1,
     .leader = Leader::kFed,
     .counts_calls = true,
     .needs_slot = true},
    {.name = "average_codec", .kind = KeyKind::kCodec, .leader = Leader::kFed},
    {.name = "step_ahead",
     .kind = KeyKind::kTable,
     .accepted =
         "a table like { gain = 1.0, step_size = \"estimated\" }, both of which may be left out",
     .fields = kStepAheadFields,
     .leader = Leader::kFed,
     .counts_calls = true,
     .needs_slot = true},
    {.name = "pairing",
     .kind = KeyKind::kReal,
     .accepted = "\"auto\", \"fifo\", \"lifo\", or the number of chunks of layers that a stage "
                 "has, from 2 to 64",
     .words = pairing_words,
     .least = 2,
     .most = 64},
    {.name = "forward_calls",
     .kind = KeyKind::kCount,
     .accepted = "how many calls go forward before their answers come, 1 to 64",
     .least = 1,
     .most = 64},
    {.name = "recomputed",
     .kind = KeyKind::kCount,
     .accepted = "how many of the forward_calls are made again at a time, 1 to 64",
     .least = 1,
     .most = 64},
    {.name = "early_stop",
     .kind = KeyKind::kCount,
     .accepted = "how many of each so many 'recomputed' are not made again, 0 to 63",
     .most = 63},
};

// --- What cannot work together

bool ef21(const Rule& rule) {
    return rule.action.error_feedback == ErrorFeedback::kEf21;
}
// Whether its ranks have residuals of their own.
bool owes(const Rule& rule) {
    return !native(rule) && (rule.action.error_feedback == ErrorFeedback::kEf14 ||
                             rule.action.error_feedback == ErrorFeedback::kEma);
}
bool without_runs(const std::optional<CodecSpec>& codec) {
    return codec.has_value() && !encodes_runs(*codec).ok();
}
CodecSpec low_of(const Rule& rule) {
    return *said(rule, "accordion", "low")->codec();
}

Names dtypes_of(const Rule& rule, bool accepted) {
    Names names;
    for (int i = 0; i < kDTypeCount; ++i) {
        const auto type = static_cast<DType>(i);
        const bool asked = accepted || (rule.match.dtypes & bit_of(type)) != 0;
        if (asked && rule.action.codec->accepts(type) == accepted) {
            names.emplace_back(dtype_name(type));
        }
    }
    return names;
}

Names refused_redops(const Rule& rule) {
    Names names;
    for (int i = 0; i < kRedOpCount; ++i) {
        const auto redop = static_cast<RedOp>(i);
        if ((rule.match.redops & ~kCompressedRedOps & bit_of(redop)) != 0) {
            names.emplace_back(redop_name(redop));
        }
    }
    return names;
}

// Of those of one key only the first that is broken is a finding.
constexpr Constraint kConstraints[] = {
    {.key = "accordion",
     .broken =
         [](const Rule& rule) { return !said(rule, "accordion", "low")->codec().has_value(); },
     .message = "'low' of 'accordion' is native; accepted: a codec"},
    {.key = "accordion",
     .broken = native,
     .message = "'accordion' without a codec that compresses more; accepted: a 'codec', or no "
                "'accordion'"},
    {.key = "accordion",
     .broken =
         [](const Rule& rule) {
             const std::string high = rule.action.codec->codec->name,
                               low = low_of(rule).codec->name;
             return high != low && !(high.starts_with("int") && low.starts_with("int"));
         },
     .message = "'low' = '{accordion.low}' of 'accordion' keeps residuals otherwise than codec "
                "'{codec}'; accepted: another {codec:name}"},
    {.key = "accordion",
     .broken = [](const Rule& rule) { return low_of(rule) == *rule.action.codec; },
     .message = "'low' of 'accordion' is the rule's codec; accepted: one that sends more"},
    {.key = "accordion",
     .broken =
         [](const Rule& rule) {
             const CodecSpec& high = *rule.action.codec;
             return low_rank(rule) &&
                    (autoencodes(high) || low_of(rule).params.kept < high.params.kept);
         },
     .message = "'low' = '{accordion.low}' of 'accordion' beside codec '{codec}'; accepted: "
                "powersgd, of a larger rank"},
    {.key = "accordion",
     .broken = [](const Rule& rule) { return !only<Op::kAllReduce, Op::kReduceScatter>(rule); },
     .message = "'accordion' in a rule of other operations than all-reduce and reduce-scatter, "
                "whose ranks do not all hear of the results; accepted: match = { op = "
                "\"allreduce\" }, \"reducescatter\", or both"},
    {.key = "accordion",
     .broken = [](const Rule& rule) { return !feeds(rule) && !rule.action.replicated_state(); },
     .message = "'accordion' without error feedback; accepted: error_feedback other than \"none\""},
    {.key = "accordion",
     .broken = [](const Rule& rule) { return said(rule, "ramp") != nullptr; },
     .message = "'accordion' beside 'ramp'; accepted: one of them"},
    {.key = "ramp",
     .broken = native,
     .message = "'ramp' without a codec that it leads to; accepted: a 'codec', or no 'ramp'"},
    {.key = "error_feedback",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return low_rank(rule) && !native(rule) && ef21(rule); },
     .message = "ef21 with {codec:name}, whose factors follow a gradient by themselves; accepted: "
                "none, ef14, ema"},
    {.key = "algorithm",
     .also_by_default = true,
     .broken =
         [](const Rule& rule) {
             return low_rank(rule) && !native(rule) &&
                    algorithm_other_than(rule, Algorithm::kLowRank);
         },
     .message = "algorithm '{algorithm}' with codec '{codec}'; accepted: auto, low_rank"},
    {.key = "intra_codec",
     .also_by_default = true,
     .broken =
         [](const Rule& rule) { return !native(rule) && without_runs(rule.action.intra_codec); },
     .message =
         "intra_codec '{intra_codec}', which is for whole messages; accepted: any other codec"},
    {.key = "residual",
     .also_by_default = true,
     .broken =
         [](const Rule& rule) {
             return !native(rule) && ef21(rule) &&
                    rule.action.residual_type() != ResidualType::kFloat32;
         },
     .message = "'residual' with ef21, whose estimates must not be rounded; accepted: residual = "
                "\"fp32\", or no 'residual'"},
    {.key = "residual",
     .broken = [](const Rule& rule) { return native(rule) || !feeds(rule); },
     .message = "'residual' without error feedback; accepted: error_feedback other than \"none\", "
                "or no 'residual'"},
    {.key = "average_codec",
     .broken = [](const Rule& rule) { return said(rule, "average_every") == nullptr; },
     .message = "'average_codec' without 'average_every'; accepted: both, or an 'average_every' "
                "alone, which averages residuals as they are"},
    {.key = "average_codec",
     .broken = [](const Rule& rule) { return without_runs(rule.action.codec_of("average_codec")); },
     .message = "average_codec '{average_codec}', whose encodings of residuals have no sum; "
                "accepted: native, or a codec that quantises or keeps the largest, like int8"},
    {.key = "average_codec",
     .broken =
         [](const Rule& rule) {
             const std::optional<CodecSpec> codec = rule.action.codec_of("average_codec");
             return codec.has_value() && !codec->accepts(DType::kFloat32);
         },
     .message =
         "average_codec '{average_codec}' does not take f32, which residuals are averaged in"},
    {.key = "average_every",
     .broken = ef21,
     .message = "'average_every' with ef21, whose estimates the ranks share; accepted: a codec "
                "with error_feedback ef14 or ema, or no 'average_every'"},
    {.key = "average_every",
     .broken = [](const Rule& rule) { return !owes(rule); },
     .message = "'average_every' without residuals; accepted: a codec with error_feedback ef14 or "
                "ema, or no 'average_every'"},
    {.key = "average_every",
     .broken =
         [](const Rule& rule) {
             return !only<Op::kAllReduce, Op::kReduceScatter, Op::kReduce>(rule);
         },
     .message = "'average_every' in a rule of operations that sum nothing, whose ranks are owed "
                "for data of their own; accepted: match = { op = [\"allreduce\", "
                "\"reducescatter\", \"reduce\"] }, or some of them"},
    {.key = "average_every",
     .broken = [](const Rule& rule) { return rule.action.intra_codec.has_value(); },
     .message = "'average_every' with intra_codec, where ranks owe both contributions and nodes' "
                "sums; accepted: one of them"},
    {.key = "step_ahead",
     .broken = [](const Rule& rule) { return !owes(rule) || low_rank(rule); },
     .message = "'step_ahead' without residuals; accepted: a codec with error_feedback ef14 or "
                "ema, or no 'step_ahead'"},
    {.key = "step_ahead",
     .broken = [](const Rule& rule) { return !only<Op::kReduceScatter, Op::kAllReduce>(rule); },
     .message = "'step_ahead' in a rule of other operations than sums of gradients; accepted: "
                "match = { op = \"reducescatter\" }, or \"allreduce\""},
    {.key = "step_ahead",
     .broken =
         [](const Rule& rule) {
             return (rule.match.ops & bit_of(Op::kAllReduce)) != 0 &&
                    (said(rule, "step_ahead", "step_size")->word() == "estimated" ||
                     rule.action.residual_type() != ResidualType::kFloat32);
         },
     .message =
         "'step_ahead' of all-reduces, whose parameters the program moves by slimwire_step_ahead; "
         "accepted: step_size \"told\" or a number, and residual = \"fp32\""},
    {.key = "error_feedback",
     .broken = [](const Rule& rule) { return native(rule) && feeds(rule); },
     .message = "error feedback without a codec; accepted: a codec, or error_feedback = \"none\""},
    {.key = "algorithm",
     .broken =
         [](const Rule& rule) {
             return native(rule) && algorithm_other_than(rule, Algorithm::kNative);
         },
     .message = "algorithm '{algorithm}' without a codec; accepted: auto, native, or a codec"},
    {.key = "codec",
     .beside = "algorithm",
     .broken = [](const Rule& rule) { return native(rule) && rule.action.codec.has_value(); },
     .message = "codec with algorithm = \"native\"; accepted: one of them"},
    {.key = "intra_codec",
     .broken = [](const Rule& rule) { return native(rule) && rule.action.intra_codec.has_value(); },
     .message = "intra_codec without a codec; accepted: a codec, or none of both"},
    {.key = "intra_codec",
     .broken =
         [](const Rule& rule) {
             return rule.action.intra_codec.has_value() &&
                    algorithm_other_than(rule, Algorithm::kHierarchical);
         },
     .message = "intra_codec with algorithm '{algorithm}'; accepted: auto, hierarchical"},
    {.key = "accordion",
     .broken = [](const Rule& rule) { return paired(std::optional(low_of(rule))); },
     .message = "'low' = '{accordion.low}' of 'accordion' with pair=mask; accepted: pair=none"},
    {.key = "intra_codec",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return !native(rule) && paired(rule.action.intra_codec); },
     .message =
         "intra_codec '{intra_codec}' with pair=mask, which is for messages; accepted: pair=none"},
    {.key = "average_codec",
     .broken = [](const Rule& rule) { return paired(rule.action.codec_of("average_codec")); },
     .message = "average_codec '{average_codec}' with pair=mask, which is for messages; accepted: "
                "pair=none"},
    {.key = "dtype",
     .broken = [](const Rule& rule) { return !native(rule) && !dtypes_of(rule, false).empty(); },
     .message = "codec '{codec}' does not take {refused_dtypes}; accepted: {accepted_dtypes}"},
    {.key = "redop",
     .broken = [](const Rule& rule) { return !native(rule) && !refused_redops(rule).empty(); },
     .message = "a codec cannot reduce by {refused_redops}; accepted: sum, avg, premulsum"},
};

std::string field_text(std::string_view what, const Rule& rule) {
    if (what == "codec:name") {
        return rule.action.codec->codec->name;
    }
    if (what == "refused_dtypes" || what == "accepted_dtypes") {
        return join(dtypes_of(rule, what == "accepted_dtypes"));
    }
    if (what == "refused_redops") {
        return join(refused_redops(rule));
    }
    const size_t dot = what.find('.');
    const auto key = std::find_if(std::begin(kKeys), std::end(kKeys),
                                  [&](const Key& one) { return one.name == what.substr(0, dot); });
    const Value value = key->of(rule.action);
    return dot == std::string_view::npos ? value.text() : value.find(what.substr(dot + 1))->text();
}

}  // namespace

Value Key::of(const Action& action) const {
    if (get != nullptr) {
        return get(action);
    }
    const Value* value = action.find(name);
    return value == nullptr ? Value() : *value;
}

bool Key::put(const Value& value, Action* action) const {
    if (set != nullptr) {
        return set(value, action);
    }
    std::erase_if(action->features, [&](const auto& one) { return one.first == name; });
    if (!value.absent()) {
        action->features.emplace_back(name, value);
    }
    return true;
}

bool Key::said_by(const Action& action) const {
    return same_as.empty() && of(action) != of(Action());
}

std::span<const Key> action_keys() noexcept {
    return kKeys;
}

Value::Table match_values(const Match& match) {
    Value::Table values;
    const auto add_number = [&](std::string_view key, uint64_t value, uint64_t any) {
        if (value != any) {
            values.emplace_back(key, value_of(value));
        }
    };
    const auto add_words = [&](std::string_view key, bool any, const auto& words) {
        if (!any) {
            Value::List list;
            std::transform(words.begin(), words.end(), std::back_inserter(list),
                           [](const auto& word) { return word_value(word); });
            values.emplace_back(key, value_of(std::move(list)));
        }
    };
    const auto add_set = [&](std::string_view key, uint32_t bits, bool any, Names names) {
        size_t at = 0;
        std::erase_if(names, [&](std::string_view) { return (bits >> at++ & 1u) == 0; });
        add_words(key, any, names);
    };
    const auto add_indices = [&](std::string_view key, const auto& indices) {
        std::vector<std::string> texts;
        std::transform(indices.begin(), indices.end(), std::back_inserter(texts), indices_text);
        add_words(key, texts.empty(), texts);
    };
    const auto has_all = [](uint32_t bits, uint32_t all) { return (bits & all) == all; };
    add_set("op", match.ops, has_all(match.ops, kAllOps), op_names());
    add_set("dtype", match.dtypes, has_all(match.dtypes, kAllDTypes), dtype_names());
    add_set("redop", match.redops, has_all(match.redops, kAllRedOps), redop_names());
    add_number("min_bytes", match.min_bytes, Match().min_bytes);
    add_number("max_bytes", match.max_bytes, Match().max_bytes);
    add_number("min_ranks", static_cast<uint64_t>(match.min_ranks), 0);
    add_number("max_ranks", static_cast<uint64_t>(match.max_ranks), INT32_MAX);
    if (match.scope.has_value()) {
        values.emplace_back("scope", word_value(scope_name(*match.scope)));
    }
    add_words("comm", match.comms.empty(), match.comms);
    add_set("role", match.roles, match.roles == 0, role_names());
    const ParameterMatch& parameters = match.parameters;
    add_words("param", parameters.dimensions == ParameterMatch::kAllDimensions,
              dimensions_texts(parameters.dimensions));
    add_indices("index", parameters.indices);
    add_words("name", parameters.names.empty(), parameters.names);
    add_indices("ordinal", match.ordinals);
    add_set("direction", match.directions / bit_of(Direction::kForward), match.directions == 0,
            direction_names());
    return values;
}

std::array<std::span<const Constraint>, 2> constraints() noexcept {
    return {kConstraints, answer_constraints()};
}

std::string uncaptured_keys() {
    Names names;
    for (const Key& key : action_keys()) {
        if (key.needs_slot) {
            names.push_back(key.name);
        }
    }
    return join(names);
}

std::string finding_text(const Constraint& constraint, const Rule& rule) {
    const std::string_view message = constraint.message;
    std::string out;
    for (size_t at = 0; at < message.size();) {
        const bool holder = message[at] == '{' && at + 1 < message.size() &&
                            std::isalpha(static_cast<unsigned char>(message[at + 1])) != 0;
        const size_t end = holder ? message.find('}', at) : at;
        out += holder ? field_text(message.substr(at + 1, end - at - 1), rule)
                      : std::string(1, message[at]);
        at = end + 1;
    }
    return out;
}

}  // namespace slimwire
