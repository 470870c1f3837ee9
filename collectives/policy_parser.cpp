// Reads a policy file. The only file that includes toml++ (header only, without exceptions).
// Every finding is "file:line:column: what is wrong; accepted: ..."; all findings of a file make
// one Status of one line. Called once per process and by `slimwire policy check`.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "collectives/config.h"
#include "collectives/names.h"
#include "collectives/policy.h"

namespace slimwire {
namespace {

using Names = std::vector<std::string_view>;

constexpr char kCodecAccepted[] = "'native' or a codec";

const Names& top_keys() {
    static const Names keys = {"version", "defaults", "rule"};
    return keys;
}
const Names& rule_keys() {
    static const Names keys = {"name",           "match",      "codec",     "algorithm",
                               "error_feedback", "start_step", "min_bytes", "ef"};
    return keys;
}
const Names& default_keys() {
    static const Names keys = {"codec",      "algorithm", "error_feedback",
                               "start_step", "min_bytes", "ef"};
    return keys;
}
const Names& match_keys() {
    static const Names keys = {"op", "dtype", "redop", "bytes", "ranks", "scope"};
    return keys;
}

std::string quoted(std::string_view text) {
    return "'" + std::string(text) + "'";
}

std::string type_name(const toml::node& node) {
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

class Parser {
  public:
    explicit Parser(std::string_view name) : name_(name) { policy_.source = name_; }

    Result<Policy> parse(std::string_view text) {
        toml::parse_result result = toml::parse(text, name_);
        if (!result) {
            const toml::parse_error& error = result.error();
            std::string what(error.description());
            std::replace(what.begin(), what.end(), '\n', ' ');
            report(error.source(), what);
            return findings();
        }
        const toml::table& root = result.table();
        check_keys(root, top_keys(), "the file");
        read_version(root);
        if (const toml::node* node = root.get("defaults")) {
            if (const toml::table* table = node->as_table()) {
                context_ = "[defaults]";
                check_keys(*table, default_keys(), "[defaults]");
                read_action(*table, &defaults_);
            } else {
                wrong_type(*node, "defaults", "a table: [defaults]");
            }
        }
        if (const toml::node* node = root.get("rule")) {
            read_rules(*node);
        }
        context_.clear();
        if (!findings_.empty()) {
            return findings();
        }
        policy_.warnings = policy_warnings(policy_);
        return std::move(policy_);
    }

  private:
    void report(const toml::source_region& where, const std::string& what) {
        const auto line = std::max<toml::source_index>(where.begin.line, 1);
        const auto column = std::max<toml::source_index>(where.begin.column, 1);
        findings_.push_back(name_ + ":" + std::to_string(line) + ":" + std::to_string(column) +
                            ": " + (context_.empty() ? "" : context_ + ": ") + what);
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
                                  suggestion(value, accepted) + "; accepted: " + join(accepted));
    }

    void check_keys(const toml::table& table, const Names& accepted, const std::string& of) {
        for (const auto& [key, node] : table) {
            if (std::find(accepted.begin(), accepted.end(), key.str()) == accepted.end()) {
                report(key.source(), "unknown key " + quoted(key.str()) + " of " + of +
                                         suggestion(key.str(), accepted) +
                                         "; accepted: " + join(accepted));
            }
        }
    }

    void read_version(const toml::table& root) {
        const toml::node* node = root.get("version");
        if (node == nullptr) {
            report({}, "missing key 'version'; accepted: version = 1");
        } else if (!node->is_integer()) {
            wrong_type(*node, "version", "1");
        } else if (node->as_integer()->get() != 1) {
            report(node->source(), "unknown version " + std::to_string(node->as_integer()->get()) +
                                       "; accepted: 1");
        }
    }

    void read_rules(const toml::node& node) {
        const toml::array* array = node.as_array();
        if (array == nullptr) {
            return wrong_type(node, "rule", "an array of tables: [[rule]]");
        }
        for (const toml::node& element : *array) {
            context_.clear();
            if (const toml::table* table = element.as_table()) {
                read_rule(*table);
            } else {
                wrong_type(element, "rule", "an array of tables: [[rule]]");
            }
        }
    }

    void read_rule(const toml::table& table) {
        Rule rule;
        rule.line = static_cast<int>(table.source().begin.line);
        context_ = "rule " + std::to_string(policy_.rules.size() + 1);
        read_name(table, &rule);
        check_keys(table, rule_keys(), "a rule");
        rule.action = defaults_;
        if (const toml::node* node = table.get("match")) {
            if (const toml::table* match = node->as_table()) {
                check_keys(*match, match_keys(), "match");
                read_match(*match, &rule.match);
            } else {
                wrong_type(*node, "match", "a table, like { op = \"allreduce\" }");
            }
        }
        read_action(table, &rule.action);
        check_combination(table, &rule);
        policy_.rules.push_back(std::move(rule));
    }

    void read_name(const toml::table& table, Rule* rule) {
        constexpr char kAccepted[] = "1 to 64 letters, digits, '_', '-', '.'";
        const toml::node* node = table.get("name");
        if (node == nullptr) {
            return report(table.source(),
                          std::string("missing key 'name'; accepted: ") + kAccepted);
        }
        if (!node->is_string()) {
            return wrong_type(*node, "name", kAccepted);
        }
        const std::string& name = node->as_string()->get();
        const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   c == '_' || c == '-' || c == '.';
        });
        if (name.empty() || name.size() > 64 || !plain) {
            return report(node->source(),
                          "bad value " + quoted(name) + " of 'name'; accepted: " + kAccepted);
        }
        if (name == kEnvironmentRule) {
            return report(node->source(),
                          "the name 'env' belongs to the rule that SLIMWIRE_CODEC makes; "
                          "accepted: any other name");
        }
        if (const Rule* other = policy_.find(name)) {
            return report(node->source(),
                          "duplicate name " + quoted(name) + ", first used by the rule in line " +
                              std::to_string(other->line) + "; accepted: unique names");
        }
        rule->name = name;
        context_ = "rule " + quoted(name);
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

    void read_match(const toml::table& table, Match* match) {
        read_set(table, "op", parse_op, op_names(), &match->ops);
        read_set(table, "dtype", parse_dtype, dtype_names(), &match->dtypes);
        read_set(table, "redop", parse_redop, redop_names(), &match->redops);
        if (const auto scope = read_one(table, "scope", parse_scope, scope_names())) {
            match->scope = scope;
        }
        if (const toml::node* node = table.get("bytes")) {
            const std::string accepted = "a range like \"1MiB..\", \"..4KiB\" or \"64KiB..1MiB\"";
            if (node->is_string()) {
                read_range(*node, "bytes", accepted, parse_bytes, &match->min_bytes,
                           &match->max_bytes);
            } else {
                wrong_type(*node, "bytes", accepted);
            }
        }
        if (const toml::node* node = table.get("ranks")) {
            const std::string accepted = "a number of ranks or a range like \"2..16\" or \"4..\"";
            const auto read_end = [&](std::string_view text) -> Result<int> {
                int value = 0;
                const auto [end, error] =
                    std::from_chars(text.data(), text.data() + text.size(), value);
                if (error != std::errc() || end != text.data() + text.size() || value < 1) {
                    return Status(
                        Code::kInvalidArgument,
                        quoted(text) + " is not a number of ranks; accepted: " + accepted);
                }
                return value;
            };
            if (node->is_string()) {
                read_range(*node, "ranks", accepted, read_end, &match->min_ranks,
                           &match->max_ranks);
            } else if (node->is_integer()) {
                const int64_t value = node->as_integer()->get();
                if (value < 1 || value > std::numeric_limits<int>::max()) {
                    report(node->source(), "bad value " + quoted(std::to_string(value)) +
                                               " of 'ranks'; accepted: " + accepted);
                } else {
                    match->min_ranks = match->max_ranks = static_cast<int>(value);
                }
            } else {
                wrong_type(*node, "ranks", accepted);
            }
        }
    }

    void read_action(const toml::table& table, Action* action) {
        if (const toml::node* node = table.get("codec")) {
            if (!node->is_string()) {
                wrong_type(*node, "codec", kCodecAccepted);
            } else if (Result<std::optional<CodecSpec>> codec =
                           parse_codec_or_native(node->as_string()->get());
                       codec.ok()) {
                action->codec = codec.value();
            } else {
                report(node->source(), "bad value " + quoted(node->as_string()->get()) +
                                           " of 'codec': " + codec.status().message());
            }
        }
        if (const auto value = read_one(table, "algorithm", parse_algorithm, algorithm_names())) {
            action->algorithm = *value;
        }
        if (table.contains("ef") && table.contains("error_feedback")) {
            report(table.get("ef")->source(),
                   "'ef' and 'error_feedback' are the same key; accepted: one of them");
        }
        for (const char* key : {"error_feedback", "ef"}) {
            if (const auto value =
                    read_one(table, key, parse_error_feedback, error_feedback_names())) {
                action->error_feedback = *value;
            }
        }
        if (const toml::node* node = table.get("start_step")) {
            if (!node->is_integer()) {
                wrong_type(*node, "start_step", "a number of steps, 0 or more");
            } else if (node->as_integer()->get() < 0) {
                report(node->source(), "bad value " +
                                           quoted(std::to_string(node->as_integer()->get())) +
                                           " of 'start_step'; accepted: 0 or more");
            } else {
                action->start_step = static_cast<uint64_t>(node->as_integer()->get());
            }
        }
        if (const toml::node* node = table.get("min_bytes")) {
            read_size(*node, "min_bytes", &action->min_bytes);
        }
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

    // What cannot work together, as far as the rule says it in so many words.
    void check_combination(const toml::table& table, Rule* rule) {
        Action& action = rule->action;
        const toml::node* ef = table.get("error_feedback");
        ef = ef != nullptr ? ef : table.get("ef");
        const bool native = !action.codec || action.algorithm == Algorithm::kNative;
        if (native) {
            if (ef != nullptr && action.error_feedback != ErrorFeedback::kNone) {
                report(ef->source(),
                       "error feedback without a codec; accepted: a codec, or "
                       "error_feedback = \"none\"");
            }
            if (const toml::node* algorithm = table.get("algorithm");
                algorithm != nullptr && action.algorithm != Algorithm::kAuto &&
                action.algorithm != Algorithm::kNative) {
                report(algorithm->source(),
                       "algorithm " + quoted(algorithm_name(action.algorithm)) +
                           " without a codec; accepted: auto, native, or a codec");
            }
            if (const toml::node* codec = table.get("codec");
                codec != nullptr && action.codec && table.contains("algorithm")) {
                report(codec->source(), "codec with algorithm = \"native\"; accepted: one of them");
            }
            action = {};
            return;
        }
        const toml::table* match = table.get("match") ? table.get("match")->as_table() : nullptr;
        if (match == nullptr) {
            return;
        }
        if (const toml::node* node = match->get("dtype")) {
            Names accepted;
            std::string refused;
            for (int i = 0; i < kDTypeCount; ++i) {
                const DType type = static_cast<DType>(i);
                if (action.codec->accepts(type)) {
                    accepted.emplace_back(dtype_name(type));
                } else if ((rule->match.dtypes & bit_of(type)) != 0) {
                    refused += (refused.empty() ? "" : ", ") + std::string(dtype_name(type));
                }
            }
            if (!refused.empty()) {
                report(node->source(), "codec " + quoted(action.codec->to_string()) +
                                           " does not take " + refused +
                                           "; accepted: " + join(accepted));
            }
        }
        if (const toml::node* node = match->get("redop")) {
            const uint32_t refused = rule->match.redops & ~kCompressedRedOps;
            for (int i = 0; i < kRedOpCount; ++i) {
                if ((refused >> i & 1u) != 0 && static_cast<RedOp>(i) != RedOp::kNone) {
                    report(node->source(), std::string("a codec cannot reduce by ") +
                                               redop_name(static_cast<RedOp>(i)) +
                                               "; accepted: sum, avg, premulsum");
                }
            }
        }
    }

    std::string name_;
    std::string context_;  // which rule or table is being read
    std::vector<std::string> findings_;
    Action defaults_;
    Policy policy_;
};

}  // namespace

Result<std::optional<CodecSpec>> parse_codec_or_native(std::string_view text) {
    if (text == "native" || text == "none" || text == "off") {
        return std::optional<CodecSpec>();
    }
    Result<CodecSpec> codec = parse_codec(text);
    if (!codec.ok()) {
        return codec.status();
    }
    return std::optional<CodecSpec>(codec.value());
}

Result<Policy> parse_policy(std::string_view text, std::string_view name) {
    return Parser(name).parse(text);
}

Result<Policy> load_policy_file(const std::string& path) {
    const auto refuse = [&](int error) {
        return Status(Code::kNotFound, "policy file '" + path +
                                           "' cannot be read: " + std::strerror(error) +
                                           "; accepted: the path of a readable TOML file");
    };
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                               std::fclose);
    if (file == nullptr) {
        return refuse(errno);
    }
    std::string text;
    char buffer[4096];
    while (const size_t got = std::fread(buffer, 1, sizeof buffer, file.get())) {
        text.append(buffer, got);
    }
    if (std::ferror(file.get()) != 0) {
        return refuse(errno);
    }
    return parse_policy(text, path);
}

}  // namespace slimwire
