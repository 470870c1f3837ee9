// Rules of calls that answer each other, as gradients answer activations: which they are, and what
// cannot work with their masks, factors, autoencoders and directions.
#include <cstdint>
#include <optional>
#include <span>

#include "codecs/low_rank/low_rank.h"
#include "codecs/pair_mode.h"
#include "collectives/policy/rule_facts.h"

namespace slimwire {
namespace {

// Some of the rule's calls are of operations that do not, of one of a pair
// of them, or of collectives of which nothing tells the answers.
bool answered_by_none(const Rule& rule) {
    return !only<Op::kSend, Op::kRecv, Op::kAllToAll, Op::kAllGather, Op::kReduceScatter>(rule);
}
bool half_answered(const Rule& rule) {
    constexpr uint32_t kBoth = bit_of(Op::kAllGather) | bit_of(Op::kReduceScatter);
    const uint32_t asked = rule.match.ops & kBoth;
    return asked != 0 && asked != kBoth;
}
bool uncounted(const Rule& rule) {
    return !only<Op::kSend, Op::kRecv>(rule) && said(rule, "forward_calls") == nullptr;
}
// Of matrices that no parameter has, nor a message: none of its calls could be compressed.
bool rowless(const Rule& rule) {
    return low_rank(rule) && rule.action.codec->params.row == 0 && !learns_rows(rule) &&
           ((rule.match.ops & kCarryingOps) == 0 || said(rule, "forward_calls") != nullptr);
}
constexpr Constraint kAnswerConstraints[] = {
    {.key = "codec",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return paired(rule) && answered_by_none(rule); },
     .message = "codec '{codec}' in a rule of operations that no call answers, like an all-reduce, "
                "and so none shares its mask; accepted: match = { op = [\"send\", \"recv\"] }, "
                "\"alltoall\", [\"allgather\", \"reducescatter\"], or pair=none"},
    {.key = "codec",
     .also_by_default = true,
     .broken =
         [](const Rule& rule) {
             return (paired(rule) || (learns(rule) && said(rule, "forward_calls") != nullptr)) &&
                    half_answered(rule);
         },
     .message =
         "codec '{codec}' in a rule of one of all-gather and reduce-scatter, each of which answers "
         "the other; accepted: match = { op = [\"allgather\", \"reducescatter\"] }, or pair=none"},
    {.key = "codec",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return paired(rule) && uncounted(rule); },
     .message = "codec '{codec}' in a rule of collectives without 'forward_calls', of which "
                "nothing else tells the answers; accepted: forward_calls = 1 where each is "
                "answered before the next, or how many come before their answers, or pair=none"},
    {.key = "codec",
     .also_by_default = true,
     .broken =
         [](const Rule& rule) {
             return !native(rule) && autoencodes(*rule.action.codec) &&
                    averaged_role(rule.action.codec->params) >= 0 && !learns(rule);
         },
     .message = "codec '{codec}' in a rule without calls that answer each other, whose "
                "autoencoders alone copies average; accepted: match = { op = [\"send\", \"recv\"] "
                "}, collectives with 'forward_calls', or average=none"},
    {.key = "codec",
     .also_by_default = true,
     .broken = rowless,
     .message = "codec '{codec}' in a rule of operations of which nothing tells the shapes, as DDP "
                "tells those of gradients in all-reduces; accepted: row=, the elements of a row, "
                "of activations the hidden size"},
    {.key = "algorithm",
     .also_by_default = true,
     .broken =
         [](const Rule& rule) {
             return paired(rule) && algorithm_other_than(rule, Algorithm::kDirect);
         },
     .message = "algorithm '{algorithm}' with codec '{codec}', whose masks pairs of ranks share; "
                "accepted: auto, direct, or pair=none"},
    {.key = "error_feedback",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return paired(rule) && feeds(rule); },
     .message = "error feedback with codec '{codec}': activations and their gradients are of one "
                "step alone; accepted: error_feedback = \"none\", or pair=none"},
    {.key = "start_step",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return paired(rule) && rule.action.start_step > 0; },
     .message = "'start_step' with codec '{codec}', whose answers would be to messages without a "
                "mask; accepted: start_step = 0, or pair=none"},
    {.key = "direction",
     .broken = paired,
     .message = "'direction' with codec '{codec}', which takes messages and their answers; "
                "accepted: no 'direction', or pair=none"},
    {.key = "direction",
     .broken = learns,
     .message = "'direction' with codec '{codec}', which takes messages and their answers; "
                "accepted: no 'direction'"},
    {.key = "ramp",
     .broken =
         [](const Rule& rule) {
             bool any = paired(rule);
             said(rule, "ramp")->for_each_codec([&](const CodecSpec& codec) {
                 any |= paired(std::optional(codec));
             });
             return any;
         },
     .message = "'ramp' with pair=mask, whose masks are those of one codec; accepted: pair=none in "
                "all codecs of the rule, or no 'ramp'"},
    {.key = "ramp",
     .broken =
         [](const Rule& rule) {
             bool any = goes_by_answers(rule);
             said(rule, "ramp")->for_each_codec([&](const CodecSpec& codec) {
                 Rule other = rule;
                 other.action.codec = codec;
                 any |= goes_by_answers(other);
             });
             return any;
         },
     .message =
         "'ramp' with factors or an autoencoder of calls that answer each other, which go by one "
         "codec; accepted: a rule of other operations, like all-reduces, or no 'ramp'"},
    {.key = "start_step",
     .also_by_default = true,
     .broken = [](const Rule& rule) { return goes_by_answers(rule) && rule.action.start_step > 0; },
     .message = "'start_step' with codec '{codec}' of calls that answer each other, of which the "
                "first would lack what they answer; accepted: start_step = 0, or a rule of other "
                "operations, like all-reduces"},
    {.key = "ordinal",
     .broken =
         [](const Rule& rule) {
             return (paired(rule) || goes_by_answers(rule)) &&
                    said(rule, "forward_calls") == nullptr;
         },
     .message = "'ordinal' with codec '{codec}' of messages between stages, which are "
                "micro-batches and no layers, and whose ends count answers each for itself; "
                "accepted: exchanges with 'forward_calls', other operations, like all-reduces, "
                "pair=none, or no 'ordinal', where 'comm' tells stages apart"},
    {.key = "pairing",
     .broken = [](const Rule& rule) { return !paired(rule) && !goes_by_answers(rule); },
     .message = "'pairing' without masks that messages share; accepted: a codec topk, threshold or "
                "randomk with pair=mask, powersgd or linear_ae of messages, or no 'pairing'"},
    {.key = "pairing",
     .broken =
         [](const Rule& rule) {
             const double chunks = said(rule, "pairing")->real();
             return chunks != static_cast<double>(static_cast<uint32_t>(chunks));
         },
     .message = "bad value '{pairing}' of 'pairing'; accepted: a whole number of chunks from 2 to "
                "64, or \"auto\", \"fifo\", \"lifo\""},
    {.key = "forward_calls",
     .broken =
         [](const Rule& rule) {
             return !paired(rule) && !learns(rule) && rule.match.directions == 0 &&
                    (rule.match.ordinals.empty() || answered_by_none(rule));
         },
     .message = "'forward_calls' without calls that answer each other; accepted: a codec topk, "
                "threshold or randomk with pair=mask, linear_ae of all-to-alls or all-gathers and "
                "reduce-scatters, match = { direction = \"forward\" } or \"backward\", match = { "
                "ordinal = \"12-\" }, or no 'forward_calls'"},
    {.key = "recomputed",
     .broken =
         [](const Rule& rule) {
             const PairOrder order = rule.action.pair_order();
             return order.calls == 0 || order.calls % order.again != 0;
         },
     .message =
         "'recomputed' divides 'forward_calls', whose answers come behind each so many that are "
         "made again; accepted: forward_calls that are a multiple of it, or no 'recomputed'"},
    {.key = "early_stop",
     .broken =
         [](const Rule& rule) {
             const PairOrder order = rule.action.pair_order();
             return order.skipped >= order.again;
         },
     .message = "'early_stop' leaves out some of those that are made again at a time; accepted: "
                "less than 'recomputed', or no 'early_stop'"},
    {.key = "forward_calls",
     .broken = [](const Rule& rule) { return rule.action.pair_order().chunks > 1; },
     .message = "'forward_calls' with chunks of a pipeline ('pairing'); accepted: one of them"},
    {.key = "direction",
     .broken = answered_by_none,
     .message =
         "'direction' in a rule of operations that no call answers, like an all-reduce; accepted: "
         "match = { op = [\"send\", \"recv\"] }, \"alltoall\", [\"allgather\", \"reducescatter\"]"},
    {.key = "direction",
     .broken = half_answered,
     .message = "'direction' in a rule of one of all-gather and reduce-scatter, each of which "
                "answers the other; accepted: match = { op = [\"allgather\", \"reducescatter\"] }"},
    {.key = "ordinal",
     .broken =
         [](const Rule& rule) {
             return half_answered(rule) && said(rule, "forward_calls") != nullptr;
         },
     .message = "'ordinal' with 'forward_calls' in a rule of one of all-gather and reduce-scatter, "
                "each of which answers the other; accepted: match = { op = [\"allgather\", "
                "\"reducescatter\"] }, or no 'forward_calls'"},
    {.key = "direction",
     .broken = uncounted,
     .message = "'direction' in a rule of collectives without 'forward_calls', of which nothing "
                "else tells the answers; accepted: forward_calls = 1 where each is answered before "
                "the next, or how many come before their answers"},
};

}  // namespace

bool answers_by_factors(const Action& action, Op op) noexcept {
    const bool exchanged = op == Op::kAllToAll || op == Op::kAllGather || op == Op::kReduceScatter;
    return action.low_rank() && action.error_feedback == ErrorFeedback::kNone &&
           (is_point_to_point(op) ||
            (exchanged && autoencodes(*action.codec) && action.count_of("forward_calls") > 0));
}

bool carries_activations(const Action& action, Op op) noexcept {
    return is_point_to_point(op) || op == Op::kAllToAll || action.count_of("forward_calls") > 0;
}

bool goes_by_answers(const Rule& rule) noexcept {
    bool any = false;
    for (int i = 0; i < kOpCount; ++i) {
        const Op op = static_cast<Op>(i);
        any |= (rule.match.ops & bit_of(op)) != 0 && answers_by_factors(rule.action, op);
    }
    return !native(rule) && any;
}

bool learns_rows(const Rule& rule) noexcept {
    constexpr uint32_t kMessages = bit_of(Op::kSend) | bit_of(Op::kRecv);
    return !native(rule) && (rule.match.ops & kMessages) != 0 &&
           answers_by_factors(rule.action, Op::kSend) && rule.action.codec->params.row == 0 &&
           rule.action.pair_order().calls == 0;
}

bool learns_from_answers(const Action& action, Op op) noexcept {
    return answers_by_factors(action, op) && autoencodes(*action.codec);
}

std::span<const Constraint> answer_constraints() noexcept {
    return kAnswerConstraints;
}

}  // namespace slimwire
