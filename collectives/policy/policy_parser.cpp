// Reads a policy file with toml++ (header only, without exceptions; set up in policy_reader.h,
// where also values are read and findings made) by the tables of policy_keys.h. Every finding is
// "file:line:column: what is wrong; accepted: ..."; all findings of a file make one Status of one
// line. Called once per process and by `slimwire policy check`.
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "collectives/policy/policy.h"
#include "collectives/policy/policy_keys.h"
#include "collectives/policy/policy_reader.h"
#include "collectives/policy/variables.h"

namespace slimwire {
namespace {

// The action's keys behind those in `first`; of [defaults] only those that may stand there.
Names keys_of_actions(Names first, bool defaults) {
    for (const Key& key : action_keys()) {
        if (key.in_defaults || !defaults) {
            first.push_back(key.name);
        }
    }
    return first;
}

// As messages name a policy whose text the variable holds.
constexpr char kPolicyVariable[] = "SLIMWIRE_POLICY";

constexpr size_t kMostPolicyBytes = 1 << 20;

std::string_view line_at(std::string_view text, const toml::source_position& place) {
    for (uint32_t line = 1; line < place.line; ++line) {
        text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    }
    return text.substr(0, text.find_first_of("\r\n"));
}

bool is_letter(char c) {
    return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

// Whether it is no number that went wrong: int4, 64KiB, 1MiB..; not 1.2.3, 0x, 1e.
bool reads_as_text(std::string_view word) {
    const bool based = word.size() > 1 && word[0] == '0' && is_letter(word[1]);
    return !word.empty() &&
           (is_letter(word[0]) || (!based && std::any_of(word.begin(), word.end(), [](char c) {
                return is_letter(c) && c != 'e' && c != 'E';
            })));
}

// A value without quotes at this place of a file that is no TOML, such as int4:block=64 behind
// `codec = `; "" where the file is wrong in another way.
std::string bare_word(std::string_view text, const toml::source_position& place) {
    text = line_at(text, place);
    const auto in_word = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
               (c != 0 && std::strchr("_-:.", c));
    };
    size_t begin = std::min<size_t>(place.column == 0 ? 0 : place.column - 1, text.size());
    while (begin > 0 && (begin == text.size() || !in_word(text[begin]))) {
        --begin;  // the place may be behind the word
    }
    while (begin > 0 && in_word(text[begin - 1])) {
        --begin;
    }
    const size_t before = begin == 0 ? text.npos : text.find_last_not_of(" \t", begin - 1);
    if (before == text.npos || std::strchr("=[,", text[before]) == nullptr ||
        text.substr(0, begin).find_first_not_of(" \t[") == text.npos) {  // a table's name
        return "";
    }
    std::string_view word = text.substr(begin);
    word = word.substr(0, word.find_first_of(" \t,]}#\"'"));
    return reads_as_text(word) ? std::string(word) : "";
}

// What is wrong with a file that is no TOML, at the place where its parser stopped.
std::string what_is_wrong(std::string_view text, const toml::parse_error& error) {
    std::string what(error.description());
    std::replace(what.begin(), what.end(), '\n', ' ');
    if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
        return "the file is UTF-16, as some editors and shells write it; accepted: UTF-8";
    }
    // A key may stand behind a comma, as a word without quotes may.
    if (what.find("cannot redefine") != std::string::npos) {
        return what + "; accepted: each key once";
    }
    const std::string word = bare_word(text, error.source().begin);
    if (!word.empty()) {
        return quoted(word) + " is a text and has no quotes; accepted: \"" + word + "\"";
    }
    for (const char* quote : {"\u201c", "\u201d", "\u2018", "\u2019"}) {
        if (line_at(text, error.source().begin).find(quote) != std::string_view::npos) {
            return std::string("quotes of a word processor, ") + quote + "; accepted: \" or '";
        }
    }
    if (what.find("control characters") != std::string::npos) {
        for (const unsigned char c : line_at(text, error.source().begin)) {
            if ((c < ' ' && c != '\t') || c == 0x7f) {
                char escape[8];
                std::snprintf(escape, sizeof escape, "\\u%04x", c);
                return std::string("a control character in a text; accepted: as ") + escape;
            }
        }
        return "a text that does not end in its line; accepted: a closing quote";
    }
    return what;
}

class Parser : PolicyReader {
  public:
    Parser(std::string_view name, PolicyParts parts) : PolicyReader(name), parts_(parts) {
        policy_.source = name_;
    }

    Result<Policy> parse(std::string_view text) {
        toml::parse_result result = toml::parse(text, name_);
        if (!result) {
            report(result.error().source(), what_is_wrong(text, result.error()));
            return findings();
        }
        const toml::table& root = result.table();
        if (const toml::node* node = root.get("runtime")) {
            read_runtime(*node);
        }
        if (parts_ == PolicyParts::kRuntime) {
            return findings_.empty() ? Result<Policy>(std::move(policy_)) : findings();
        }
        check_keys(root, {"version", "defaults", "rule", "runtime"}, "the file");
        read_version(root);
        if (const toml::node* node = root.get("defaults")) {
            if (const toml::table* table = node->as_table()) {
                context_ = "[defaults]";
                check_keys(*table, keys_of_actions({}, true), "[defaults]");
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
        if (root.get("defaults") != nullptr && policy_.rules.empty()) {
            policy_.warnings.push_back(name_ +
                                       ": [defaults] are of rules, and there is none: nothing is "
                                       "compressed; accepted: [[rule]] with name and match");
        }
        return std::move(policy_);
    }

  private:
    void read_version(const toml::table& root) {
        const toml::node* node = root.get("version");
        if (node == nullptr && name_ == kPolicyVariable) {
            return;
        }
        if (node == nullptr) {
            report({}, "missing key 'version'; accepted: version = 1");
        } else if (!node->is_integer()) {
            wrong_type(*node, "version", "1");
        } else if (node->as_integer()->get() != 1) {
            report(node->source(), "unknown version " + std::to_string(node->as_integer()->get()) +
                                       "; accepted: 1");
        }
    }

    void read_runtime(const toml::node& node) {
        context_ = "[runtime]";
        const toml::table* table = node.as_table();
        if (table == nullptr) {
            return wrong_type(node, "runtime", "a table: [runtime]");
        }
        Names names;
        for (const VariableInfo& key : kRuntimeKeys) {
            names.emplace_back(key.name);
        }
        check_keys(*table, names, "[runtime]");
        Settings unused;
        for (const VariableInfo& key : kRuntimeKeys) {
            const toml::node* said = table->get(key.name);
            if (said == nullptr) {
                continue;
            }
            if (!said->is_string() && (key.kind == VariableKind::kPattern ||
                                       (!said->is_integer() && !said->is_boolean()))) {
                wrong_type(*said, key.name, accepted_values(key.kind));
                continue;
            }
            const std::string text = said->is_string() ? said->as_string()->get()
                                     : said->is_integer()
                                         ? std::to_string(said->as_integer()->get())
                                     : said->as_boolean()->get() ? "true"
                                                                 : "false";
            if (const Status status = set_runtime(key.name, text, &unused); !status.ok()) {
                report(said->source(), status.message());
            }
            policy_.runtime.emplace_back(key.name, text);
        }
        context_.clear();
    }

    void read_rules(const toml::node& node) {
        const toml::array* array = node.as_array();
        if (array == nullptr) {
            return wrong_type(node, "rule", "an array of tables: [[rule]]");
        }
        constexpr size_t kMostRules = 1000;
        if (array->size() > kMostRules) {
            return report(node.source(), std::to_string(array->size()) +
                                             " rules, which each new kind of call is compared with "
                                             "in turn; accepted: at most " +
                                             std::to_string(kMostRules));
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
        const size_t before = findings_.size();
        Rule rule;
        rule.line = static_cast<int>(table.source().begin.line);
        context_ = "rule " + std::to_string(policy_.rules.size() + 1);
        read_name(table, &rule);
        check_keys(table, keys_of_actions({"name", "match"}, false), "a rule");
        rule.action = defaults_;
        const toml::table* match = nullptr;
        if (const toml::node* node = table.get("match")) {
            match = node->as_table();
            if (match != nullptr) {
                read_match(*match, &rule.match);
            } else {
                wrong_type(*node, "match", "a table, like { op = \"allreduce\" }");
            }
        }
        read_action(table, &rule.action);
        if (findings_.size() == before) {
            check_constraints(table, match, rule);
        }
        if (!rule.action.codec || rule.action.algorithm == Algorithm::kNative) {
            rule.action = {};
        } else if (match == nullptr || !match->contains("op")) {
            rule.match.ops &= ~kNamedOnlyOps;
        }
        policy_.rules.push_back(std::move(rule));
    }

    void read_action(const toml::table& table, Action* action) {
        for (const Key& key : action_keys()) {
            const toml::node* node = table.get(key.name);
            if (node == nullptr) {
                continue;
            }
            if (!key.same_as.empty() && table.contains(key.same_as)) {
                report(node->source(), quoted(key.name) + " and " + quoted(key.same_as) +
                                           " are the same key; accepted: one of them");
            }
            Value value;
            if (read_value(*node, key, quoted(key.name), action->start_step, &value) &&
                !key.put(value, action)) {
                bad_value(*node, key.name, value.word(), key.words());
            }
        }
    }

    // What cannot work together; of each key, what its first row finds.
    void check_constraints(const toml::table& table, const toml::table* match, const Rule& rule) {
        const auto where = [&](std::string_view name) -> const toml::node* {
            for (const Key& key : action_keys()) {
                if (key.name == name || key.same_as == name) {
                    if (const toml::node* node = table.get(key.name)) {
                        return node;
                    }
                }
            }
            return match == nullptr ? nullptr : match->get(name);
        };
        Names found;
        const auto check = [&](const Constraint& constraint) {
            const toml::node* node = where(constraint.key);
            if ((node == nullptr && !constraint.also_by_default) ||
                (!constraint.beside.empty() && !table.contains(constraint.beside)) ||
                std::find(found.begin(), found.end(), constraint.key) != found.end() ||
                !constraint.broken(rule)) {
                return;
            }
            found.push_back(constraint.key);
            report((node != nullptr ? *node : static_cast<const toml::node&>(table)).source(),
                   finding_text(constraint, rule));
        };
        for (const std::span<const Constraint> table_of : constraints()) {
            std::for_each(table_of.begin(), table_of.end(), check);
        }
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

    using ReadMatch = void (*)(Parser&, const toml::node&, Match*);
    struct MatchKey {
        std::string_view name;
        ReadMatch read;
    };

    void read_match(const toml::table& table, Match* match) {
        static constexpr MatchKey kKeys[] = {
            {"op",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_set(node, "op", parse_op, op_names(), &m->ops);
                 m->ops |= (m->ops & ops_with(Op::kSend)) != 0 ? ops_with(Op::kSend) : 0;
             }},
            {"dtype",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_set(node, "dtype", parse_dtype, dtype_names(), &m->dtypes);
             }},
            {"redop",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_set(node, "redop", parse_redop, redop_names(), &m->redops);
             }},
            {"bytes", [](Parser& p, const toml::node& node, Match* m) { p.read_bytes(node, m); }},
            {"ranks", [](Parser& p, const toml::node& node, Match* m) { p.read_ranks(node, m); }},
            {"scope", [](Parser& p, const toml::node& node, Match* m) { p.read_scope(node, m); }},
            {"comm",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_patterns(
                     node, "comm",
                     "names that the program gives communicators (ncclConfig_t.commName)",
                     "mesh_dp*", &m->comms);
             }},
            {"role",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_set(node, "role", parse_role, role_names(), &m->roles);
             }},
            {"param", [](Parser& p, const toml::node& node,
                         Match* m) { p.read_dimensions(node, &m->parameters.dimensions); }},
            {"index",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_indices(node, "index", "numbers of parameters in the model",
                                &m->parameters.indices);
             }},
            {"name",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_patterns(node, "name", "names of parameters", "*.bias",
                                 &m->parameters.names);
             }},
            {"ordinal",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_indices(node, "ordinal", "places among a step's calls of one kind",
                                &m->ordinals);
             }},
            {"direction",
             [](Parser& p, const toml::node& node, Match* m) {
                 p.read_set(node, "direction", parse_direction, direction_names(), &m->directions);
             }},
        };
        Names names;
        for (const MatchKey& key : kKeys) {
            names.push_back(key.name);
        }
        check_keys(table, names, "match");
        for (const MatchKey& key : kKeys) {
            if (const toml::node* node = table.get(key.name)) {
                key.read(*this, *node, match);
            }
        }
    }

    void read_scope(const toml::node& node, Match* match) {
        if (!node.is_string()) {
            return wrong_type(node, "scope", join(scope_names()));
        }
        match->scope = parse_scope(node.as_string()->get());
        if (!match->scope) {
            bad_value(node, "scope", node.as_string()->get(), scope_names());
        }
    }

    void read_bytes(const toml::node& node, Match* match) {
        const std::string accepted = "a range like \"1MiB..\", \"..4KiB\" or \"64KiB..1MiB\"";
        if (!node.is_string()) {
            return wrong_type(node, "bytes", accepted);
        }
        read_range(node, "bytes", accepted, parse_bytes, &match->min_bytes, &match->max_bytes);
    }

    void read_ranks(const toml::node& node, Match* match) {
        const std::string accepted = "a number of ranks or a range like \"2..16\" or \"4..\"";
        const auto read_end = [&](std::string_view text) -> Result<int> {
            int value = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            if (error != std::errc() || end != text.data() + text.size() || value < 1) {
                return Status(Code::kInvalidArgument,
                              quoted(text) + " is not a number of ranks; accepted: " + accepted);
            }
            return value;
        };
        if (node.is_string()) {
            read_range(node, "ranks", accepted, read_end, &match->min_ranks, &match->max_ranks);
        } else if (node.is_integer()) {
            const int64_t value = node.as_integer()->get();
            if (value < 1 || value > std::numeric_limits<int>::max()) {
                return report(node.source(), "bad value " + quoted(std::to_string(value)) +
                                                 " of 'ranks'; accepted: " + accepted);
            }
            match->min_ranks = match->max_ranks = static_cast<int>(value);
        } else {
            wrong_type(node, "ranks", accepted);
        }
    }

    PolicyParts parts_;
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
    if (codec.value().traits(DType::kFloat32).lossless) {
        const std::string name = codec.value().codec->name;
        return Status(Code::kInvalidArgument,
                      "no collective goes by " + name +
                          removed_hint(RemovedKind::kPolicyValue, "codec=" + name));
    }
    return std::optional<CodecSpec>(codec.value());
}

Result<Policy> parse_policy(std::string_view text, std::string_view name, PolicyParts parts) {
    return Parser(name, parts).parse(text);
}

Result<Policy> load_policy(const std::string& said, PolicyParts parts) {
    if (said.empty()) {
        Policy none;
        none.source = "none";
        return none;
    }
    const bool is_text = said.front() == '[' || said.find('\n') != std::string::npos;
    return is_text ? parse_policy(said, kPolicyVariable, parts) : load_policy_file(said, parts);
}

Result<Policy> load_policy_file(const std::string& path, PolicyParts parts) {
    const auto refuse_for = [&](const std::string& why) {
        return Status(Code::kNotFound, "policy file '" + path + "' cannot be read: " + why +
                                           "; accepted: the path of a readable TOML file");
    };
    const auto refuse = [&](int error) { return refuse_for(std::strerror(error)); };
    // Others may have no end, or nobody who writes them.
    struct stat found {};
    if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
        return S_ISDIR(found.st_mode) ? refuse(EISDIR) : refuse_for("it is no regular file");
    }
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                               std::fclose);
    if (file == nullptr) {
        return refuse(errno);
    }
    std::string text;
    char buffer[4096];
    while (const size_t got = std::fread(buffer, 1, sizeof buffer, file.get())) {
        text.append(buffer, got);
        if (text.size() > kMostPolicyBytes) {
            return refuse_for("it has more than " + std::to_string(kMostPolicyBytes) + " bytes");
        }
    }
    if (std::ferror(file.get()) != 0) {
        return refuse(errno);
    }
    return parse_policy(text, path, parts);
}

}  // namespace slimwire
