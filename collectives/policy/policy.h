// A policy: ordered rules that say which calls are compressed and how. Parsed once per process from
// a TOML file or from the one-codec variables (config.h); immutable afterwards, so every thread
// reads it without a lock. Keys: collectives/policy/POLICY.md; examples: tools/policies.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/codec.h"
#include "codecs/residual/residual_type.h"
#include "collectives/call/call.h"
#include "collectives/policy/parameter_match.h"
#include "collectives/policy/policy_value.h"
#include "collectives/policy/role.h"

namespace slimwire {

enum class Algorithm : uint8_t {
    kAuto,
    kNative,
#define ALGORITHM(id, name, ops, estimate_ops) k##id,
#include "collectives/policy/algorithms.def"
#undef ALGORITHM
};
#define ALGORITHM(id, name, ops, estimate_ops) +1
inline constexpr int kAlgorithmCount = 2
#include "collectives/policy/algorithms.def"
    ;
#undef ALGORITHM
[[nodiscard]] const char* algorithm_name(Algorithm algorithm) noexcept;

// Whether the algorithm can carry the operation at all, whatever codec and communicator.
[[nodiscard]] bool has_form(Algorithm algorithm, Op op) noexcept;

// What becomes of what an encoding loses (README, "Error feedback").
enum class ErrorFeedback : uint8_t {
    kNone,
    kEf14,  // all of it is added to the next call of the tensor
    kEma,   // a moving average of it
    kEf21,  // nothing: what is encoded is how much the call differs from an estimate of it
};
inline constexpr int kErrorFeedbackCount = 4;
// Weight of the old average in kEma's new one (LoCo's).
inline constexpr float kEmaKeep = 0.8f;
[[nodiscard]] const char* error_feedback_name(ErrorFeedback kind) noexcept;

// Whether kEf21 has a form of the operation by the algorithm; kAuto: by one that it may stand for.
[[nodiscard]] bool has_estimates(Algorithm algorithm, Op op) noexcept;

inline constexpr int kResidualTypeCount = 3;
[[nodiscard]] const char* residual_type_name(ResidualType type) noexcept;

// Which forward message a backward one answers, of those that wait (identity/message_pairing.h).
struct PairOrder {
    enum Kind : uint8_t {
        kAuto,  // the oldest, until counts that differ show that it is the newest
        kFifo,
        kLifo,
    };
    Kind kind = kAuto;
    // Above 1: each stage has so many chunks of layers. Micro-batches go in groups of `ranks`, a
    // group through all chunks forward, then backward in the opposite order of chunks.
    uint32_t chunks = 1;
    uint32_t ranks = 1;
    // Above 0: not of a pipeline. Since each mark of a step so many calls go forward, then as many
    // answers come, and so on; kAuto: newest first. Above 0: so many of them at a time, the last
    // ones first, are made again before they are answered (activation checkpointing), but for so
    // many last ones (its early stop).
    uint32_t calls = 0, again = 0, skipped = 0;
    bool stops_said = false;  // `skipped` is, 0 too
    uint32_t rule = 0;        // which of the policy it is of: each counts its own
    bool operator==(const PairOrder&) const = default;
};

// Sets of enumerators as bits.
template <class E>
[[nodiscard]] constexpr uint32_t bit_of(E value) noexcept {
    return 1u << static_cast<unsigned>(value);
}
inline constexpr uint32_t kAllOps = (1u << kOpCount) - 1;
// An operation as a rule means it: both ends of a message must decide alike, so send and recv come
// together.
[[nodiscard]] constexpr uint32_t ops_with(Op op) noexcept {
    const uint32_t both = bit_of(Op::kSend) | bit_of(Op::kRecv);
    return (bit_of(op) & both) != 0 ? both : bit_of(op);
}
inline constexpr uint32_t kAllDTypes = (1u << kDTypeCount) - 1;
inline constexpr uint32_t kAllRedOps = (1u << kRedOpCount) - 1;

// Operations of which it can be known what parameters they carry: those that sum gradients. Of
// others no rule that asks for parameters takes anything.
inline constexpr uint32_t kCarryingOps =
    bit_of(Op::kAllReduce) | bit_of(Op::kReduceScatter) | bit_of(Op::kReduce);

// Operations whose payload is often state that must stay exact (parameters at start-up, gathered
// state): a rule takes them only if it names them, or its codec is native.
inline constexpr uint32_t kNamedOnlyOps =
    bit_of(Op::kAllGather) | bit_of(Op::kBroadcast) | bit_of(Op::kGather) | bit_of(Op::kScatter);
// Reductions that can be compressed, and operations that reduce nothing; any other that a rule with
// a codec matches stays native.
inline constexpr uint32_t kCompressedRedOps =
    bit_of(RedOp::kSum) | bit_of(RedOp::kAvg) | bit_of(RedOp::kPreMulSum) | bit_of(RedOp::kNone);

// What a rule asks for. An absent member means "any".
struct Match {
    uint32_t ops = kAllOps;        // bit per Op; send and recv only together
    uint32_t dtypes = kAllDTypes;  // bit per DType
    uint32_t redops = kAllRedOps;  // bit per RedOp
    // Of the call's buffer: count * element size * (ranks for gather-like ops); both ends
    // inclusive.
    uint64_t min_bytes = 0;
    uint64_t max_bytes = ~0ull;
    int min_ranks = 0;  // both ends inclusive
    int max_ranks = INT32_MAX;
    std::optional<Scope> scope;
    std::vector<std::string> comms;  // patterns of the communicator's name, ascending; empty: any
    uint32_t roles = 0;              // bit per Role of that name; 0: any
    ParameterMatch parameters;       // of ranges of the call, where one is not for all
    // Which calls of their kind in the step, from 0: ascending, apart from each other; empty: any,
    // also where that is not known.
    std::vector<ParameterMatch::Indices> ordinals;
    uint32_t directions = 0;  // bit per Direction of messages; 0: any, also where that is not known

    [[nodiscard]] bool takes_ordinal(uint32_t ordinal) const noexcept;
    // Whether the match asks for an ordinal or a direction that is not known of the call.
    [[nodiscard]] bool asks_more(const CallSignature& signature) const noexcept {
        return (!ordinals.empty() && signature.ordinal == 0) ||
               (directions != 0 && signature.direction == Direction::kUnknown);
    }
};

// Whether a call is of the match, but for what it carries, and for its ordinal and its direction
// where they are not known. `comm`: name of its communicator.
[[nodiscard]] bool matches_call(const Match& match,
                                const CallSignature& signature,
                                uint64_t bytes,
                                int ranks,
                                Scope scope,
                                std::string_view comm = {}) noexcept;

// With min_bytes "auto": smaller calls are native where nothing is known of calls and links.
inline constexpr uint64_t kLeastBytesOfUnknown = 65536;

struct Action {
    std::optional<CodecSpec> codec;        // empty: native
    std::optional<CodecSpec> intra_codec;  // inside nodes, with kHierarchical; empty: raw
    Algorithm algorithm = Algorithm::kAuto;
    ErrorFeedback error_feedback = ErrorFeedback::kNone;
    std::optional<ResidualType> residual;  // empty: the kind's own, residual_type()
    uint64_t start_step = 0;               // occurrences of a tensor key that stay native first
    uint64_t min_bytes = 0;                // smaller calls stay native
    bool auto_bytes = false;               // instead: those that are faster so (choose_by_costs())
    int least_state_rank = 0;  // of a codec that takes turns with this one, whose state it shares
    // What features read alone, by their keys (policy_keys.h).
    Value::Table features;

    // Whether a codec of low rank says what travels.
    [[nodiscard]] bool low_rank() const noexcept {
        return codec.has_value() && codec->traits(DType::kFloat32).low_rank;
    }
    // The largest rank of factors, whose columns a tensor's state has room for.
    [[nodiscard]] int state_rank() const;
    // Whether other codecs take turns with `codec`.
    [[nodiscard]] bool switches_codec() const;
    // The first of its codecs that needs error feedback of such elements, of which it has none.
    [[nodiscard]] std::optional<CodecSpec> codec_without_feedback(DType dtype) const;
    // Whether what a tensor's call does follows from how many it had.
    [[nodiscard]] bool counts_calls() const;
    // What the rule says of a feature, null where nothing; a count of it, or 0; a codec, or none.
    [[nodiscard]] const Value* find(std::string_view key) const noexcept;
    [[nodiscard]] uint64_t count_of(std::string_view key) const noexcept;
    [[nodiscard]] std::optional<CodecSpec> codec_of(std::string_view key) const;
    // Whether messages go by masks that their answers share; and which one an answer is to.
    [[nodiscard]] bool pairs_masks() const noexcept {
        return codec.has_value() && codec->pairs_masks();
    }
    [[nodiscard]] PairOrder pair_order() const noexcept;
    // The rule says nothing of it any more.
    void forget(std::string_view key);
    // Whether tensors have state that is equal on all ranks, so that these must tell tensors apart
    // alike.
    [[nodiscard]] bool replicated_state() const noexcept {
        return error_feedback == ErrorFeedback::kEf21 || low_rank();
    }
    // Whether tensors have more than a residual that each rank adds for itself: their calls are
    // native until the tensor's slot is known, on all ranks alike.
    [[nodiscard]] bool needs_slot() const;
    // Whether the host counts a tensor's calls to choose what the next one does.
    [[nodiscard]] bool counts_at_slot() const;
    // fp32 of kEf14, int8 of kEma, unless the rule says another.
    [[nodiscard]] ResidualType residual_type() const noexcept {
        return residual.value_or(error_feedback == ErrorFeedback::kEma ? ResidualType::kInt8
                                                                       : ResidualType::kFloat32);
    }
};

struct Rule {
    std::string name;  // unique; reports and SLIMWIRE_RULE_OFF use it
    Match match;
    Action action;
    bool off = false;  // named in SLIMWIRE_RULE_OFF: skipped when matching
    int line = 0;      // in the file; 0 for the rule made from variables
};

struct Policy {
    std::vector<Rule> rules;
    std::vector<std::string> warnings;  // unreachable rules and the like, one line each
    // File name; "environment" when there is no file but SLIMWIRE_CODEC; else "none".
    std::string source;
    // What [runtime] says, by key, as set_runtime() takes it; no part of canonical().
    std::vector<std::pair<std::string, std::string>> runtime;

    // First rule that matches a range of a call, or null; of a null range nothing is known, and
    // rules that ask for parameters pass it over, as those do that ask for an ordinal or a
    // direction that is not known. Pure; no allocation.
    [[nodiscard]] const Rule* match(const CallSignature& signature,
                                    uint64_t bytes,
                                    int ranks,
                                    Scope scope,
                                    const ParameterRange* range = nullptr,
                                    std::string_view comm = {}) const noexcept;
    // The operations, as bits, of which rules with a codec may take calls on a communicator of so
    // many ranks, of this scope and name; of any where those are not known.
    [[nodiscard]] uint32_t compressed_ops(int ranks,
                                          std::optional<Scope> scope = {},
                                          std::optional<std::string_view> comm = {}) const noexcept;
    [[nodiscard]] bool can_compress(int ranks,
                                    std::optional<Scope> scope = {},
                                    std::optional<std::string_view> comm = {}) const noexcept {
        return compressed_ops(ranks, scope, comm) != 0;
    }
    // Canonical text of everything that affects a plan; equal text means equal behaviour. The hash
    // that ranks compare is made of it, not of the file.
    [[nodiscard]] std::string canonical() const;
    // Whether some rule that is not off has a codec.
    [[nodiscard]] bool has_codec() const noexcept;
    // Whether some such rule keeps something of tensors, or any that is not off asks for ordinals.
    [[nodiscard]] bool wants_steps() const noexcept;
    // Whether some rule with a codec has pair=mask.
    [[nodiscard]] bool wants_pairs() const noexcept;
    // Whether some such rule takes rows of messages as what goes in front of them tells.
    [[nodiscard]] bool wants_rows() const noexcept;
    // Whether some rule with a codec says this of a feature.
    [[nodiscard]] bool uses(std::string_view key) const noexcept;
    // Whether some rule with a codec counts calls, decides by what it saw, or may draw numbers on
    // all ranks alike (replicated_progress.h).
    [[nodiscard]] bool wants_progress() const noexcept;
    // Whether some rule that is not off asks for the parameters that calls carry, for their shapes,
    // or for the slots of all-reduces, which DDP's bucket table tells.
    [[nodiscard]] bool wants_parameters() const noexcept;
    // Whether one asks for parameters by name.
    [[nodiscard]] bool wants_parameter_names() const noexcept;
    // Whether some rule that is not off asks for the communicator's name.
    [[nodiscard]] bool wants_names() const noexcept;
    // The first rule with this name, or null.
    [[nodiscard]] const Rule* find(std::string_view name) const noexcept;
};

// Whether calls that the rule takes may go by a codec.
[[nodiscard]] bool compresses(const Rule& rule) noexcept;

// One line for each rule that can never decide a call, because its match is empty or earlier rules
// take all its calls, for each whose codec or algorithm leaves named operations native, and for
// each whose codec needs the error feedback that the rule does not have. Rules that are off neither
// take calls nor are reported. `only`: of this rule of the policy; null: of all.
[[nodiscard]] std::vector<std::string> policy_warnings(const Policy& policy,
                                                       const Rule* only = nullptr);

// The name of the rule that SLIMWIRE_CODEC makes; a file may not use it.
inline constexpr char kEnvironmentRule[] = "env";

enum class PolicyParts : uint8_t {
    kAll,
    kRuntime,  // of the rest nothing is read, whatever it is
};

// `text` is the file's content, `name` goes into messages. An error has the form
// "p.toml:7:12: rule 'grads': unknown key 'codek'; accepted: codec, algorithm, ...".
Result<Policy> parse_policy(std::string_view text,
                            std::string_view name,
                            PolicyParts parts = PolicyParts::kAll);
Result<Policy> load_policy_file(const std::string& path, PolicyParts parts = PolicyParts::kAll);
// What SLIMWIRE_POLICY holds: nothing, which is a policy without rules; the text itself, which has
// several lines or begins with a bracket, and needs no version; else a path.
Result<Policy> load_policy(const std::string& said, PolicyParts parts);

// The specification of a codec that collectives may go by, or empty for "native", "none" and "off".
Result<std::optional<CodecSpec>> parse_codec_or_native(std::string_view text);

}  // namespace slimwire
