// The table of the keys of a rule, and that of what cannot work together. Reading, the text that
// ranks compare, printing, JSON, and what several rules of one message give way in: all follow
// from these rows, and a key that one feature reads stands nowhere else in this folder.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/policy/policy.h"
#include "collectives/policy/policy_value.h"

namespace slimwire {

enum class KeyKind : uint8_t {
    kCodec,      // a codec, or native
    kWord,       // of `words`
    kCount,      // an integer from `least` to `most`
    kBytes,      // an integer, a text like 64KiB, or one of `words`
    kReal,       // a number from `least` to `most`, or one of `words`
    kAscending,  // integers, each above the one before
    kTable,      // of `fields`
    kStages,     // tables of `fields`, whose first is a count and ascends
};

// Whose value a message has that several rules share.
enum class Leader : uint8_t {
    kOwn,      // each part of the message keeps that of its rule
    kMain,     // the rule with most elements
    kFed,      // the one with most elements among those with error feedback
    kLargest,  // the one with the largest value
};

inline constexpr double kMostCalls = double(uint64_t{1} << 40);

struct Key {
    std::string_view name = {};
    KeyKind kind = KeyKind::kCodec;
    // What messages say that it takes; null: what follows from its kind.
    const char* accepted = nullptr;
    // Of a count: how a message about one that is out of range ends, where it is not `accepted`.
    const char* range = nullptr;
    std::vector<std::string_view> (*words)() = nullptr;
    double least = 0, most = kMostCalls;
    std::span<const Key> fields = {};
    // Of a field: its value where it is left out; null: it may not be.
    const char* otherwise = nullptr;
    std::string_view same_as = {};  // the key that this is another name of
    // Where an Action has a member for it; else it is one of Action::features. set() gives false
    // for a word that is none.
    Value (*get)(const Action&) = nullptr;
    bool (*set)(const Value&, Action*) = nullptr;
    Leader leader = Leader::kMain;
    bool in_defaults = false;     // may stand in [defaults]
    bool counts_calls = false;    // what a tensor's call does follows from how many it had
    bool needs_slot = false;      // a tensor's calls wait until its slot is known
    bool switches_codec = false;  // its codecs take turns with the rule's

    [[nodiscard]] Value of(const Action& action) const;
    bool put(const Value& value, Action* action) const;
    // Whether the action says something else than one that says nothing.
    [[nodiscard]] bool said_by(const Action& action) const;
};

// Whether such calls are activations and their gradients, of one step alone, to which error
// feedback has nothing to give back.
[[nodiscard]] bool carries_activations(const Action& action, Op op) noexcept;
// Whether such an operation goes by factors of which its answers know; and by an autoencoder that
// learns from them; whether some operation of the rule goes by factors so.
[[nodiscard]] bool answers_by_factors(const Action& action, Op op) noexcept;
[[nodiscard]] bool learns_from_answers(const Action& action, Op op) noexcept;
[[nodiscard]] bool goes_by_answers(const Rule& rule) noexcept;
// Whether the rule's messages go by factors whose rows it does not say.
[[nodiscard]] bool learns_rows(const Rule& rule) noexcept;

// The roles, as bits, of communicators over which rules average autoencoders of messages. A private
// communicator is made there, too.
[[nodiscard]] uint32_t averaged_roles(const Policy& policy) noexcept;

// In the order of messages; a key that is another's name stands there too.
[[nodiscard]] std::span<const Key> action_keys() noexcept;
// Those by which a rule's calls are native in graphs alone, for messages.
[[nodiscard]] std::string uncaptured_keys();

// What a match asks for, by key; nothing of what it takes any of.
[[nodiscard]] Value::Table match_values(const Match& match);

// What cannot work together.
struct Constraint {
    // Where a finding stands: at the first key, of the rule or its match, that is written.
    std::string_view key = {};
    // A second key without which there is nothing to find.
    std::string_view beside = {};
    // Whether what [defaults] says counts; else the rule itself must say the keys.
    bool also_by_default = false;
    bool (*broken)(const Rule& rule) = nullptr;
    // With {key}, {key.field}, {key:name} of a codec, and those of finding_text().
    const char* message = nullptr;
};
// In their order.
[[nodiscard]] std::array<std::span<const Constraint>, 2> constraints() noexcept;
[[nodiscard]] std::string finding_text(const Constraint& constraint, const Rule& rule);

}  // namespace slimwire
