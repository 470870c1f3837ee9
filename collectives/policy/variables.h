// The table of environment variables (variables.def) as constant data: settings are read by it, and
// --help, VARIABLES.md and the check for misspelt variables are printed from it.
#pragma once

#include <cstdint>
#include <string_view>

namespace slimwire {

enum class VariableKind : uint8_t {
    kMode,
    kPath,
    kCodec,
    kErrorFeedback,
    kBytes,
    kBytesOrAuto,
    kDuration,
    kRuleList,
    kPattern,
    kLogLevel,
    kText,
    kBool,
    kInteger,
    kLink,
    kNodes,
    kNetCodec,
    kRate,
    kStateRing,
};
// What values look like, for messages and the reference.
[[nodiscard]] const char* accepted_values(VariableKind kind) noexcept;

enum class VariableEffect : uint8_t {
    kNone,    // may differ between ranks
    kPolicy,  // becomes part of the policy, which ranks compare
    kPlans,   // is compared between ranks itself
};

enum class VariableReader : uint8_t { kLibrary, kNet, kTools, kEmulator, kTests };

struct VariableInfo {
    const char* name;
    VariableKind kind;
    const char* default_text;  // as the variable would be written; "" is unset
    VariableEffect effect;
    VariableReader reader;
    const char* reason;
};

inline constexpr VariableInfo kVariables[] = {
#define SLIMWIRE_SETTING(member, name, kind, default_text, effect, reason)                      \
    {#name, VariableKind::kind, default_text, VariableEffect::effect, VariableReader::kLibrary, \
     reason},
#define SLIMWIRE_RUNTIME(member, key, kind, default_text, reason)
#define SLIMWIRE_VARIABLE(name, kind, default_text, reader, reason)                          \
    {#name, VariableKind::kind, default_text, VariableEffect::kNone, VariableReader::reader, \
     reason},
#include "collectives/policy/variables.def"
#undef SLIMWIRE_SETTING
#undef SLIMWIRE_RUNTIME
#undef SLIMWIRE_VARIABLE
};

// The keys of the policy's table [runtime].
inline constexpr VariableInfo kRuntimeKeys[] = {
#define SLIMWIRE_SETTING(member, name, kind, default_text, effect, reason)
#define SLIMWIRE_RUNTIME(member, key, kind, default_text, reason)                              \
    {#key,  VariableKind::kind, default_text, VariableEffect::kNone, VariableReader::kLibrary, \
     reason},
#define SLIMWIRE_VARIABLE(name, kind, default_text, reader, reason)
#include "collectives/policy/variables.def"
#undef SLIMWIRE_SETTING
#undef SLIMWIRE_RUNTIME
#undef SLIMWIRE_VARIABLE
};

// Null for a name that is not in the table.
[[nodiscard]] const VariableInfo* find_variable(std::string_view name) noexcept;

}  // namespace slimwire
