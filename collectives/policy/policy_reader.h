// Typed reading of TOML nodes for the policy parser: each value that is not what a key accepts
// becomes a finding "file:line:column: what is wrong; accepted: ...", and reading goes on. Included
// by policy_parser.cpp alone, with policy_action_reader.h; sets up toml++.
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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "collectives/policy/parameter_match.h"
#include "collectives/policy/removed_words.h"

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

    // A string or an array of strings, each a name that `parse` knows, into a set of bits.
    template <class E>
    void read_set(const toml::table& table,
                  std::string_view key,
                  std::optional<E> (*parse)(std::string_view),
                  const Names& accepted,
                  uint32_t* set) {
        const toml::node* node = table.get(key);
        if (node == nullptr) {
            return;
        }
        uint32_t bits = 0;
        const auto add = [&](const toml::node& element) {
            if (!element.is_string()) {
                return wrong_type(element, key, "a string or an array of: " + join(accepted));
            }
            const std::string& text = element.as_string()->get();
            if (const std::optional<E> value = parse(text)) {
                bits |= bit_of(*value);
            } else {
                bad_value(element, key, text, accepted);
            }
        };
        if (const toml::array* array = node->as_array()) {
            if (array->empty()) {
                wrong_type(*node, key, "at least one of: " + join(accepted));
            }
            for (const toml::node& element : *array) {
                add(element);
            }
        } else {
            add(*node);
        }
        if (bits != 0) {
            *set = bits;
        }
    }

    // One name that `parse` knows.
    template <class E>
    std::optional<E> read_one(const toml::table& table,
                              std::string_view key,
                              std::optional<E> (*parse)(std::string_view),
                              const Names& accepted) {
        const toml::node* node = table.get(key);
        if (node == nullptr) {
            return std::nullopt;
        }
        if (!node->is_string()) {
            wrong_type(*node, key, join(accepted));
            return std::nullopt;
        }
        const std::optional<E> value = parse(node->as_string()->get());
        if (!value) {
            bad_value(*node, key, node->as_string()->get(), accepted);
        }
        return value;
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

    // The keys of a match that ask for parameters.
    void read_parameters(const toml::table& table, ParameterMatch* match) {
        if (const toml::node* node = table.get("param")) {
            uint32_t dimensions = 0;
            read_each(*node, "param", kDimensionsAccepted, [&](const toml::node& element) {
                if (!element.is_string()) {
                    return wrong_type(
                        element, "param",
                        std::string("a string or an array of: ") + kDimensionsAccepted);
                }
                const std::string& text = element.as_string()->get();
                const uint32_t bits = parse_dimensions(text);
                dimensions |= bits;
                if (bits == 0) {
                    report(element.source(), "bad value " + quoted(text) +
                                                 " of 'param'; accepted: " + kDimensionsAccepted);
                }
            });
            match->dimensions = dimensions;
        }
        read_indices(table, "index", "numbers of parameters in the model", &match->indices);
        if (const toml::node* node = table.get("name")) {
            read_patterns(*node, "name", "names of parameters", "*.bias", &match->names);
        }
    }

    // Numbers of `what` and ranges of them.
    void read_indices(const toml::table& table,
                      std::string_view key,
                      const std::string& what,
                      std::vector<ParameterMatch::Indices>* out) {
        const toml::node* node = table.get(key);
        if (node == nullptr) {
            return;
        }
        const std::string accepted = what + ", from 0, and ranges like \"10-20\"";
        read_each(*node, key, accepted, [&](const toml::node& element) {
            std::string text;
            if (element.is_integer()) {
                text = std::to_string(element.as_integer()->get());
            } else if (element.is_string()) {
                text = element.as_string()->get();
            } else {
                return wrong_type(element, key, accepted);
            }
            if (const auto indices = parse_indices(text)) {
                out->push_back(*indices);
            } else {
                report(element.source(), "bad value " + quoted(text) + " of " + quoted(key) +
                                             "; accepted: " + accepted);
            }
        });
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
        read_each(node, key, accepted, [&](const toml::node& element) {
            if (!element.is_string()) {
                wrong_type(element, key, accepted);
            } else if (element.as_string()->get().empty()) {
                report(element.source(),
                       "bad value '' of " + quoted(key) + "; accepted: " + accepted);
            } else {
                patterns->push_back(element.as_string()->get());
            }
        });
        std::sort(patterns->begin(), patterns->end());
        patterns->erase(std::unique(patterns->begin(), patterns->end()), patterns->end());
    }

    void read_size(const toml::node& node, std::string_view key, uint64_t* out) {
        if (node.is_integer() && node.as_integer()->get() >= 0) {
            *out = static_cast<uint64_t>(node.as_integer()->get());
        } else if (node.is_string()) {
            const Result<uint64_t> value = parse_bytes(node.as_string()->get());
            if (value.ok()) {
                *out = value.value();
            } else {
                report(node.source(),
                       "bad value of " + quoted(key) + ": " + value.status().message());
            }
        } else {
            wrong_type(node, key, "a number of bytes, 0 or more, or a string like \"64KiB\"");
        }
    }

    std::string name_;
    std::string context_;  // which rule or table is being read
    std::vector<std::string> findings_;
};

}  // namespace slimwire
