// The value of one key of a policy, as the table of keys (policy_keys.h) describes it. Text, JSON
// and the hash that ranks compare are made of such values. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "codecs/codec.h"

namespace slimwire {

struct Value {
    using List = std::vector<Value>;
    using Table = std::vector<std::pair<std::string_view, Value>>;  // in the order of the keys

    std::variant<std::monostate, uint64_t, double, std::string, CodecSpec, List, Table> held;

    [[nodiscard]] bool absent() const noexcept;
    // What is held where it is of that kind; else 0, an empty text, no codec.
    [[nodiscard]] uint64_t count() const noexcept;
    [[nodiscard]] double real() const noexcept;
    [[nodiscard]] std::string_view word() const noexcept;
    [[nodiscard]] std::optional<CodecSpec> codec() const;
    // Of a table; null where it has no such field.
    [[nodiscard]] const Value* find(std::string_view key) const noexcept;
    [[nodiscard]] Value* find(std::string_view key) noexcept;
    // Calls visit(codec) for every codec in it.
    template <class Visit>
    void for_each_codec(const Visit& visit) const;

    // As a person reads it: "int4", "0.5", "{ low int8, window 100 }"; "none" where it is absent.
    [[nodiscard]] std::string text() const;
    // Equal texts, equal values, whatever follows.
    [[nodiscard]] std::string canonical() const;
    bool operator==(const Value& other) const;
};

template <class T>
[[nodiscard]] Value value_of(T held) {
    Value value;
    value.held = std::move(held);
    return value;
}
[[nodiscard]] Value word_value(std::string_view word);
// "native" for none.
[[nodiscard]] Value codec_value(const std::optional<CodecSpec>& codec);

template <class Visit>
void Value::for_each_codec(const Visit& visit) const {
    if (const auto* codec = std::get_if<CodecSpec>(&held)) {
        visit(*codec);
    } else if (const auto* list = std::get_if<List>(&held)) {
        for (const Value& item : *list) {
            item.for_each_codec(visit);
        }
    } else if (const auto* table = std::get_if<Table>(&held)) {
        for (const auto& [key, item] : *table) {
            item.for_each_codec(visit);
        }
    }
}

}  // namespace slimwire
