// Typed reading of TOML nodes for the policy parser: each value that is not what a key accepts
// becomes a finding "file:line:column: what is wrong; accepted: ...", and reading goes on. Included
// by policy_parser.cpp alone; sets up toml++.
#pragma once

#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#undef NDEBUG  // with it, toml++ makes assumptions of its assertions
// Some damaged files trip toml++'s assertions, which would abort the job; without them its own
// error paths refuse the file (damaged_files_give_a_policy_or_a_place).
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/removed_words.h"
#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "collectives/policy/parameter_match.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {

using Names = std::vector<std::string_view>;

inline std::string quoted(std::string_view text) {
    return "'" + std::string(text) + "'";
}

inline std::string type_name(const toml::node& node) {
    switch (node.type()) {
        case toml::node_type::none:
            return "nothing";
        case toml::node_type::table:
            return "a table";
        case toml::node_type::array:
            return "an array";
        case toml::node_type::string:
            return "a string";
        case toml::node_type::integer:
            return "an integer";
        case toml::node_type::floating_point:
            return "a floating-point number";
        case toml::node_type::boolean:
            return "a boolean";
        case toml::node_type::date:
        case toml::node_type::time:
        case toml::node_type::date_time:
            return "a date or time";
    }
    return "something else";
}

class PolicyReader {
  public:
    explicit PolicyReader(std::string_view name) : name_(name) {}

  protected:
    void report(const toml::source_region& where, const std::string& what) {
        const auto line = std::max<toml::source_index>(where.begin.line, 1);
        const auto column = std::max<toml::source_index>(where.begin.column, 1);
        findings_.push_back(name_ + ":" + std::to_string(line) + ":" + std::to_string(column) +
                            ": " + (context_.empty() ? "" : context_ + ": ") + printable(what));
    }

    // A message is one line whatever the file holds: control characters as escapes.
    static std::string printable(const std::string& text) {
        constexpr char kDigits[] = "0123456789abcdef";
        std::string out;
        for (const char c : text) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte >= 0x20 && byte != 0x7f) {
                out += c;
            } else {
                out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
            }
        }
        return out;
    }

    Status findings() const {
        constexpr size_t kShown = 3;
        std::string text;
        for (size_t i = 0; i < std::min(findings_.size(), kShown); ++i) {
            text += (i == 0 ? "" : "; ") + findings_[i];
        }
        if (findings_.size() > kShown) {
            text += "; and " + std::to_string(findings_.size() - kShown) + " more";
        }
        return {Code::kInvalidArgument, std::move(text)};
    }

    void wrong_type(const toml::node& node, std::string_view key, const std::string& accepted) {
        report(node.source(), quoted(key) + " is " + type_name(node) + "; accepted: " + accepted);
    }

    void bad_value(const toml::node& node,
                   std::string_view key,
                   std::string_view value,
                   const Names& accepted) {
        report(node.source(), "bad value " + quoted(value) + " of " + quoted(key) +
                                  removed_hint(RemovedKind::kPolicyValue,
                                               std::string(key) + "=" + std::string(value)) +
                                  suggestion(value, accepted) + "; accepted: " + join(accepted));
    }

    void check_keys(const toml::table& table, const Names& accepted, const std::string& of) {
        for (const auto& [key, node] : table) {
            if (std::find(accepted.begin(), accepted.end(), key.str()) == accepted.end()) {
                report(key.source(), "unknown key " + quoted(key.str()) + " of " + of +
                                         removed_hint(RemovedKind::kPolicyKey, key.str()) +
                                         suggestion(key.str(), accepted) +
                                         "; accepted: " + join(accepted));
            }
        }
    }

    // "LOW..HIGH", "LOW..", "..HIGH", both ends inclusive; each end read by `read_end`.
    template <class T, class ReadEnd>
    void read_range(const toml::node& node,
                    std::string_view key,
                    const std::string& accepted,
                    ReadEnd read_end,
                    T* low,
                    T* high) {
        const std::string& text = node.as_string()->get();
        const std::string bad = "bad value " + quoted(text) + " of " + quoted(key) + ": ";
        const size_t dots = text.find("..");
        if (dots == std::string::npos || text.size() == 2) {
            return report(node.source(), bad + "not a range; accepted: " + accepted);
        }
        const std::string_view ends[] = {std::string_view(text).substr(0, dots),
                                         std::string_view(text).substr(dots + 2)};
        T* const targets[] = {low, high};
        for (int i = 0; i < 2; ++i) {
            if (ends[i].empty()) {
                continue;
            }
            const Result<T> end = read_end(ends[i]);
            if (!end.ok()) {
                return report(node.source(), bad + end.status().message());
            }
            *targets[i] = end.value();
        }
        if (*low > *high) {
            report(node.source(), bad + "the first end is above the second; accepted: " + accepted);
        }
    }

    // Calls read(element) for the value or for each of an array, which must hold one.
    template <class Read>
    void read_each(const toml::node& node,
                   std::string_view key,
                   const std::string& accepted,
                   const Read& read) {
        const toml::array* array = node.as_array();
        if (array == nullptr) {
            return read(node);
        }
        if (array->empty()) {
            wrong_type(node, key, "at least one of: " + accepted);
        }
        for (const toml::node& element : *array) {
            read(element);
        }
    }

    static constexpr char kOneOrMore[] = "a string or an array of: ";

    // A text or an array of them, each of which take(text) takes, or is false. Of another type:
    // the error says `kind` in front of `accepted`. `whole`: integers are their text. `names`: of
    // which a wrong one may be meant; null: none.
    template <class Take>
    void read_texts(const toml::node& node,
                    std::string_view key,
                    const std::string& accepted,
                    const Take& take,
                    const std::string& kind = {},
                    bool whole = false,
                    const Names* names = nullptr) {
        read_each(node, key, accepted, [&](const toml::node& element) {
            if (!element.is_string() && !(whole && element.is_integer())) {
                return wrong_type(element, key, kind + accepted);
            }
            const std::string text = element.is_string()
                                         ? element.as_string()->get()
                                         : std::to_string(element.as_integer()->get());
            if (take(text)) {
                return;
            }
            names != nullptr
                ? bad_value(element, key, text, *names)
                : report(element.source(), "bad value " + quoted(text) + " of " + quoted(key) +
                                               "; accepted: " + accepted);
        });
    }

    // Names that `parse` knows into a set of bits.
    template <class E>
    void read_set(const toml::node& node,
                  std::string_view key,
                  std::optional<E> (*parse)(std::string_view),
                  const Names& accepted,
                  uint32_t* set) {
        uint32_t bits = 0;
        const auto take = [&](const std::string& text) {
            const std::optional<E> value = parse(text);
            bits |= value ? bit_of(*value) : 0;
            return value.has_value();
        };
        read_texts(node, key, join(accepted), take, kOneOrMore, false, &accepted);
        *set = bits != 0 ? bits : *set;
    }

    void read_dimensions(const toml::node& node, uint32_t* out) {
        *out = 0;
        const auto take = [&](const std::string& text) {
            const uint32_t bits = parse_dimensions(text);
            *out |= bits;
            return bits != 0;
        };
        read_texts(node, "param", kDimensionsAccepted, take, kOneOrMore);
    }

    // Numbers of `what` and ranges of them.
    void read_indices(const toml::node& node,
                      std::string_view key,
                      const std::string& what,
                      std::vector<ParameterMatch::Indices>* out) {
        const auto take = [&](const std::string& text) {
            const auto indices = parse_indices(text);
            out->insert(out->end(), indices.has_value() ? 1 : 0,
                        indices.value_or(ParameterMatch::Indices()));
            return indices.has_value();
        };
        read_texts(node, key, what + ", from 0, and ranges like \"10-20\" or \"12-\"", take, {},
                   true);
        *out = merged(std::move(*out));
    }

    // A pattern of `what`, or an array of them, in ascending order.
    void read_patterns(const toml::node& node,
                       std::string_view key,
                       const std::string& what,
                       const std::string& example,
                       std::vector<std::string>* patterns) {
        const std::string accepted =
            what + ", with '*' for any characters and '?' for one, like \"" + example + '"';
        read_texts(node, key, accepted, [&](const std::string& text) {
            patterns->push_back(text);
            return !text.empty();
        });
        std::sort(patterns->begin(), patterns->end());
        patterns->erase(std::unique(patterns->begin(), patterns->end()), patterns->end());
    }

    // The value of a key of a rule, or of a field of one; `shown`: as messages name it; `above`:
    // the first of stages is. False after a finding.
    bool read_value(const toml::node& node,
                    const Key& key,
                    const std::string& shown,
                    uint64_t above,
                    Value* out) {
        const size_t before = findings_.size();
        switch (key.kind) {
            case KeyKind::kCodec:
                read_codec(node, key, out);
                break;
            case KeyKind::kWord:
                if (node.is_string()) {
                    *out = word_value(node.as_string()->get());
                } else {
                    wrong_type(node, key.name, join(key.words()));
                }
                break;
            case KeyKind::kCount:
                read_count(node, key, shown, out);
                break;
            case KeyKind::kBytes:
                read_bytes(node, key, out);
                break;
            case KeyKind::kReal:
                read_real(node, key, shown, out);
                break;
            case KeyKind::kAscending:
                read_ascending(node, key, shown, out);
                break;
            case KeyKind::kTable:
                read_table(node, key, shown, key.accepted, out);
                break;
            case KeyKind::kStages:
                read_stages(node, key, shown, above, out);
                break;
        }
        return findings_.size() == before;
    }

    std::string name_;
    std::string context_;  // which rule or table is being read
    std::vector<std::string> findings_;

  private:
    static bool is_word(const Key& key, std::string_view text) {
        const Names words = key.words == nullptr ? Names() : key.words();
        return std::find(words.begin(), words.end(), text) != words.end();
    }

    void read_codec(const toml::node& node, const Key& key, Value* out) {
        if (!node.is_string()) {
            return wrong_type(node, key.name, "'native' or a codec");
        }
        const std::string& text = node.as_string()->get();
        const Result<std::optional<CodecSpec>> codec = parse_codec_or_native(text);
        if (!codec.ok()) {
            return report(node.source(), "bad value " + quoted(text) + " of " + quoted(key.name) +
                                             ": " + codec.status().message());
        }
        *out = codec_value(codec.value());
    }

    void read_count(const toml::node& node, const Key& key, const std::string& shown, Value* out) {
        if (key.range != nullptr && !node.is_integer()) {
            return wrong_type(node, key.name, key.accepted);
        }
        const int64_t value = node.is_integer() ? node.as_integer()->get() : -1;
        if (value >= 0 && static_cast<double>(value) >= key.least &&
            static_cast<double>(value) <= key.most) {
            *out = value_of(static_cast<uint64_t>(value));
        } else if (key.range != nullptr) {
            report(node.source(), "bad value " + quoted(std::to_string(value)) + " of " + shown +
                                      "; accepted: " + key.range);
        } else {
            report(node.source(),
                   shown + " accepts " +
                       (key.accepted != nullptr
                            ? key.accepted
                            : "a number from " + std::to_string(static_cast<int64_t>(key.least)) +
                                  " to " + std::to_string(static_cast<int64_t>(key.most))));
        }
    }

    void read_bytes(const toml::node& node, const Key& key, Value* out) {
        const auto text = node.value<std::string>();
        const int64_t number = node.is_integer() ? node.as_integer()->get() : -1;
        if (number >= 0) {
            *out = value_of(static_cast<uint64_t>(number));
        } else if (node.is_integer()) {
            report(node.source(), "bad value " + quoted(std::to_string(number)) + " of " +
                                      quoted(key.name) + "; accepted: 0 or more");
        } else if (node.is_string() && is_word(key, *text)) {
            *out = word_value(*text);
        } else if (node.is_string()) {
            const Result<uint64_t> value = parse_bytes(*text);
            if (!value.ok()) {
                return report(node.source(),
                              "bad value of " + quoted(key.name) + ": " + value.status().message());
            }
            *out = value_of(value.value());
        } else {
            wrong_type(node, key.name, "a number of bytes, 0 or more, or a string like \"64KiB\"");
        }
    }

    void read_real(const toml::node& node, const Key& key, const std::string& shown, Value* out) {
        const auto number = node.value<double>();
        if (node.is_string() && is_word(key, node.as_string()->get())) {
            *out = word_value(node.as_string()->get());
        } else if (number.has_value() && *number >= key.least && *number <= key.most) {
            *out = value_of(*number);
        } else {
            report(node.source(), shown + " accepts " + key.accepted);
        }
    }

    void read_ascending(const toml::node& node,
                        const Key& key,
                        const std::string& shown,
                        Value* out) {
        Value::List list;
        const toml::array* array = node.as_array();
        bool good = array != nullptr;
        for (size_t i = 0; good && i < array->size(); ++i) {
            const int64_t value = (*array)[i].is_integer() ? (*array)[i].as_integer()->get() : -1;
            good =
                value >= 0 && (list.empty() || static_cast<uint64_t>(value) > list.back().count());
            list.push_back(value_of(static_cast<uint64_t>(value)));
        }
        if (!good) {
            return report(node.source(), shown + " accepts " + key.accepted);
        }
        *out = value_of(std::move(list));
    }

    // A field that is left out has what its row says.
    static Value value_left_out(const Key& field) {
        const std::string_view text = field.otherwise;
        if (is_word(field, text)) {
            return word_value(text);
        }
        double number = 0;
        std::from_chars(text.data(), text.data() + text.size(), number);
        return field.kind == KeyKind::kAscending ? value_of(Value::List())
               : field.kind == KeyKind::kCount   ? value_of(static_cast<uint64_t>(number))
                                                 : value_of(number);
    }

    // `accepted`: what messages say where it is no table, or lacks a field.
    void read_table(const toml::node& node,
                    const Key& key,
                    const std::string& shown,
                    const std::string& accepted,
                    Value* out) {
        const toml::table* table = node.as_table();
        Names known, needed;
        bool complete = table != nullptr;
        for (const Key& field : key.fields) {
            known.push_back(field.name);
            if (field.otherwise == nullptr) {
                needed.push_back(field.name);
                complete = complete && table->contains(field.name);
            }
        }
        if (table == nullptr && key.kind == KeyKind::kTable) {
            return wrong_type(node, key.name, accepted);
        }
        if (!complete) {
            std::string names;
            for (const std::string_view name : needed) {
                names += (names.empty() ? "" : " and ") + quoted(name);
            }
            return report(node.source(), shown + " without " + names + "; accepted: " + accepted);
        }
        check_keys(*table, known, shown);
        Value::Table fields;
        for (const Key& field : key.fields) {
            Value value;
            const toml::node* said = table->get(field.name);
            if (said == nullptr) {
                value = value_left_out(field);
            } else {
                read_value(*said, field, quoted(field.name) + " of " + quoted(key.name), 0, &value);
            }
            fields.emplace_back(field.name, std::move(value));
        }
        *out = value_of(std::move(fields));
    }

    // The first field of each is above that of the stage before, the first one's above `above`.
    void read_stages(const toml::node& node,
                     const Key& key,
                     const std::string& shown,
                     uint64_t above,
                     Value* out) {
        const toml::array* stages = node.as_array();
        if (stages == nullptr || stages->empty()) {
            return wrong_type(node, key.name, key.accepted);
        }
        Value::List list;
        for (const toml::node& element : *stages) {
            Value stage;
            read_table(element, key, "a stage of " + shown, key.accepted, &stage);
            const std::string_view first = key.fields[0].name;
            const Value* until = stage.find(first);
            if (until == nullptr || until->absent()) {
                return;
            }
            if (until->count() <= above) {
                return report(element.as_table()->get(first)->source(),
                              quoted(first) + " of " + shown + " accepts a number of calls above " +
                                  std::to_string(above) +
                                  ", which start_step or the stage before has");
            }
            above = until->count();
            list.push_back(std::move(stage));
        }
        *out = value_of(std::move(list));
    }
};

}  // namespace slimwire
