#include "collectives/policy/policy_value.h"

#include <algorithm>
#include <bit>

#include "codecs/base/number_text.h"

namespace slimwire {
namespace {

// "12:any text it is", so that no text can be taken for what stands around it.
std::string counted(const std::string& text) {
    return std::to_string(text.size()) + ":" + text;
}

template <class Items, class Text>
std::string joined(const Items& items, const char* between, const Text& text_of) {
    std::string out;
    for (const auto& item : items) {
        out += (out.empty() ? "" : between) + text_of(item);
    }
    return out;
}

}  // namespace

bool Value::absent() const noexcept {
    return std::holds_alternative<std::monostate>(held);
}

uint64_t Value::count() const noexcept {
    const auto* number = std::get_if<uint64_t>(&held);
    return number == nullptr ? 0 : *number;
}

double Value::real() const noexcept {
    const auto* number = std::get_if<double>(&held);
    return number == nullptr ? 0 : *number;
}

std::string_view Value::word() const noexcept {
    const auto* word = std::get_if<std::string>(&held);
    return word == nullptr ? std::string_view() : std::string_view(*word);
}

std::optional<CodecSpec> Value::codec() const {
    const auto* codec = std::get_if<CodecSpec>(&held);
    return codec == nullptr ? std::nullopt : std::optional(*codec);
}

const Value* Value::find(std::string_view key) const noexcept {
    const auto* table = std::get_if<Table>(&held);
    if (table == nullptr) {
        return nullptr;
    }
    const auto found = std::find_if(table->begin(), table->end(),
                                    [&](const auto& field) { return field.first == key; });
    return found == table->end() ? nullptr : &found->second;
}

Value* Value::find(std::string_view key) noexcept {
    return const_cast<Value*>(std::as_const(*this).find(key));
}

std::string Value::text() const {
    if (const auto* number = std::get_if<uint64_t>(&held)) {
        return std::to_string(*number);
    }
    if (const auto* number = std::get_if<double>(&held)) {
        return general_text(*number, 6);
    }
    if (const auto* codec = std::get_if<CodecSpec>(&held)) {
        return codec->to_string();
    }
    if (const auto* list = std::get_if<List>(&held)) {
        return joined(*list, ", ", [](const Value& item) { return item.text(); });
    }
    if (const auto* table = std::get_if<Table>(&held)) {
        return "{ " +
               joined(*table, ", ",
                      [](const auto& field) {
                          return std::string(field.first) + " " + field.second.text();
                      }) +
               " }";
    }
    return absent() ? "none" : std::string(word());
}

std::string Value::canonical() const {
    if (const auto* number = std::get_if<uint64_t>(&held)) {
        return std::to_string(*number);
    }
    if (const auto* number = std::get_if<double>(&held)) {
        return "r" + std::to_string(std::bit_cast<uint64_t>(*number));
    }
    if (const auto* list = std::get_if<List>(&held)) {
        return "[" + joined(*list, ",", [](const Value& item) { return item.canonical(); }) + "]";
    }
    if (const auto* table = std::get_if<Table>(&held)) {
        return "{" +
               joined(*table, ",",
                      [](const auto& field) {
                          return std::string(field.first) + "=" + field.second.canonical();
                      }) +
               "}";
    }
    return absent() ? "-" : counted(text());
}

bool Value::operator==(const Value& other) const {
    return held == other.held;
}

Value word_value(std::string_view word) {
    return value_of(std::string(word));
}

Value codec_value(const std::optional<CodecSpec>& codec) {
    return codec ? value_of(*codec) : word_value("native");
}

}  // namespace slimwire
