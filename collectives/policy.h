// A policy: ordered rules that say which calls are compressed and how. Parsed once per process from a
// TOML file or from the one-codec variables (config.h); immutable afterwards, so every thread reads it
// without a lock. Grammar and examples: collectives/README.md and tools/policies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/codec.h"
#include "collectives/call.h"

namespace slimwire {

enum class Algorithm : uint8_t { kAuto, kNative, kTwoShot };
[[nodiscard]] const char* algorithm_name(Algorithm algorithm) noexcept;

enum class ErrorFeedback : uint8_t { kNone, kEf14 };
[[nodiscard]] const char* error_feedback_name(ErrorFeedback kind) noexcept;

// What a rule asks for. An absent member means "any".
struct Match {
    uint32_t ops = ~0u;     // bit per Op
    uint32_t dtypes = ~0u;  // bit per DType
    uint32_t redops = ~0u;  // bit per RedOp
    uint64_t min_bytes = 0;  // of the call's buffer: count * element size * (ranks for gather-like ops)
    uint64_t max_bytes = ~0ull;
    int min_ranks = 0;
    int max_ranks = INT32_MAX;
    std::optional<Scope> scope;
};

struct Action {
    std::optional<CodecSpec> codec;  // empty: native
    Algorithm algorithm = Algorithm::kAuto;
    ErrorFeedback error_feedback = ErrorFeedback::kNone;
    uint64_t start_step = 0;  // occurrences of a tensor key that stay native first
    uint64_t min_bytes = 0;   // smaller calls stay native
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
    std::string source;                 // file name, "environment", or "none"

    // First rule that matches, or null. Pure; no allocation.
    [[nodiscard]] const Rule* match(const CallFacts& facts,
                                    uint64_t bytes,
                                    int ranks,
                                    Scope scope) const noexcept;
    // Whether any rule with a codec can match on a communicator of this shape.
    [[nodiscard]] bool can_compress(int ranks, Scope scope) const noexcept;
    // Canonical text of everything that affects a plan; equal text means equal behaviour. The hash
    // that ranks compare is made of it, not of the file.
    [[nodiscard]] std::string canonical() const;
};

// `text` is the file's content, `name` goes into messages. An error has the form
// "p.toml:7:12: rule 'grads': unknown key 'codek'; accepted: codec, algorithm, ...".
Result<Policy> parse_policy(std::string_view text, std::string_view name);
Result<Policy> load_policy_file(const std::string& path);

}  // namespace slimwire
