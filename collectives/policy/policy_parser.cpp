// Reads a policy file with toml++ (header only, without exceptions; set up in policy_reader.h,
// where also values are read and findings made; policy_action_reader.h has what rules do). Every
// finding is "file:line:column: what is wrong; accepted: ..."; all findings of a file make one
// Status of one line. Called once per process and by `slimwire policy check`.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "collectives/policy/policy.h"
#include "collectives/policy/policy_action_reader.h"

namespace slimwire {
namespace {

const Names& top_keys() {
    static const Names keys = {"version", "defaults", "rule"};
    return keys;
}
const Names& rule_keys() {
    static const Names keys = {"name",      "match",          "codec",
                               "algorithm", "error_feedback", "start_step",
                               "min_bytes", "intra_codec",    "ef",
                               "tensor",    "residual",       "ramp",
                               "accordion", "average_every",  "average_codec",
                               "preview"};
    return keys;
}
const Names& default_keys() {
    static const Names keys = {"codec",      "algorithm", "error_feedback",
                               "start_step", "min_bytes", "intra_codec",
                               "ef",         "tensor",    "residual"};
    return keys;
}
const Names& match_keys() {
    static const Names keys = {"op",   "dtype", "redop", "bytes", "ranks", "scope",
                               "comm", "role",  "param", "index", "name",  "ordinal"};
    return keys;
}

class Parser : PolicyActionReader {
  public:
    explicit Parser(std::string_view name) : PolicyActionReader(name) { policy_.source = name_; }

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

    void read_match(const toml::table& table, Match* match) {
        read_set(table, "op", parse_op, op_names(), &match->ops);
        if ((match->ops & ops_with(Op::kSend)) != 0) {
            match->ops |= ops_with(Op::kSend);
        }
        read_set(table, "dtype", parse_dtype, dtype_names(), &match->dtypes);
        read_set(table, "redop", parse_redop, redop_names(), &match->redops);
        if (const auto scope = read_one(table, "scope", parse_scope, scope_names())) {
            match->scope = scope;
        }
        if (const toml::node* node = table.get("comm")) {
            read_patterns(*node, "comm",
                          "names that the program gives communicators (ncclConfig_t.commName)",
                          "mesh_dp*", &match->comms);
        }
        read_set(table, "role", parse_role, role_names(), &match->roles);
        read_indices(table, "ordinal", "places among a step's calls of one kind", &match->ordinals);
        read_parameters(table, &match->parameters);
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

    // What a rule with 'accordion' needs.
    void check_accordion(const toml::table& table, const Rule& rule) {
        const Action& action = rule.action;
        const toml::source_region& where = table.get("accordion")->source();
        if (!action.codec || action.algorithm == Algorithm::kNative) {
            return report(where,
                          "'accordion' without a codec that compresses more; accepted: a 'codec', "
                          "or no 'accordion'");
        }
        const auto& [high, low] = std::tie(*action.codec, action.accordion->low);
        const std::string of_high(high.codec->name);
        const std::string of_low(low.codec->name);
        const auto integers = [](const std::string& name) { return name.rfind("int", 0) == 0; };
        if (of_high != of_low && !(integers(of_high) && integers(of_low))) {
            report(where, "'low' = " + quoted(low.to_string()) +
                              " of 'accordion' keeps residuals otherwise than codec " +
                              quoted(high.to_string()) + "; accepted: another " + of_high);
        } else if (low.to_string() == high.to_string()) {
            report(where,
                   "'low' of 'accordion' is the rule's codec; accepted: one that sends more");
        } else if (action.low_rank() && (autoencodes(high) || low.params.kept < high.params.kept)) {
            report(where, "'low' = " + quoted(low.to_string()) + " of 'accordion' beside codec " +
                              quoted(high.to_string()) + "; accepted: powersgd, of a larger rank");
        }
        const uint32_t controlled = ops_with(Op::kAllReduce) | ops_with(Op::kReduceScatter);
        if ((rule.match.ops & ~controlled) != 0) {
            report(where,
                   "'accordion' in a rule of other operations than all-reduce and reduce-scatter, "
                   "whose ranks do not all hear of the results; accepted: match = { op = "
                   "\"allreduce\" }, \"reducescatter\", or both");
        }
        if (action.tensor != TensorBy::kStep) {
            report(where,
                   "'accordion' with tensor = \"address\", which ranks do not have alike; "
                   "accepted: tensor = \"step\", or no 'tensor'");
        }
        if (action.error_feedback == ErrorFeedback::kNone && !action.replicated_state()) {
            report(
                where,
                "'accordion' without error feedback; accepted: error_feedback other than \"none\"");
        }
        if (!action.ramp.empty()) {
            report(where, "'accordion' beside 'ramp'; accepted: one of them");
        }
    }

    // Of a codec that one algorithm alone carries, without ef21.
    // Factors go by an algorithm of their own, and have no estimates.
    void check_low_rank(const toml::table& table, const toml::node* ef, const Action& action) {
        if (action.error_feedback == ErrorFeedback::kEf21) {
            report((ef != nullptr ? *ef : static_cast<const toml::node&>(table)).source(),
                   "ef21 with " + std::string(action.codec->codec->name) +
                       ", whose factors follow a gradient by themselves; accepted: none, ef14, "
                       "ema");
        }
        if (const toml::node* algorithm = table.get("algorithm");
            algorithm != nullptr && action.algorithm != Algorithm::kAuto &&
            action.algorithm != Algorithm::kLowRank) {
            report(algorithm->source(), "algorithm " + quoted(algorithm_name(action.algorithm)) +
                                            " with codec " + quoted(action.codec->to_string()) +
                                            "; accepted: auto, low_rank");
        }
    }

    // Of residuals that are a rank's own share of what a sum is owed.
    void check_averaging(const toml::table& table, bool native, const Rule& rule) {
        const Action& action = rule.action;
        if (const toml::node* codec = table.get("average_codec")) {
            if (!table.contains("average_every")) {
                report(codec->source(),
                       "'average_codec' without 'average_every'; accepted: both, or an "
                       "'average_every' alone, which averages residuals as they are");
            } else if (action.average_codec.has_value() &&
                       !encodes_runs(*action.average_codec).ok()) {
                report(codec->source(),
                       "average_codec " + quoted(action.average_codec->to_string()) +
                           ", whose encodings of residuals have no sum; accepted: native, or "
                           "a codec that quantises or keeps the largest, like int8");
            } else if (action.average_codec.has_value() &&
                       !action.average_codec->accepts(DType::kFloat32)) {
                report(codec->source(), "average_codec " +
                                            quoted(action.average_codec->to_string()) +
                                            " does not take f32, which residuals are averaged in");
            }
        }
        const toml::node* node = table.get("average_every");
        if (node == nullptr || action.average_every == 0) {
            return;
        }
        const toml::source_region& where = node->source();
        constexpr uint32_t kSums =
            bit_of(Op::kAllReduce) | bit_of(Op::kReduceScatter) | bit_of(Op::kReduce);
        if (native || (action.error_feedback != ErrorFeedback::kEf14 &&
                       action.error_feedback != ErrorFeedback::kEma)) {
            report(where, std::string("'average_every' ") +
                              (action.error_feedback == ErrorFeedback::kEf21
                                   ? "with ef21, whose estimates the ranks share"
                                   : "without residuals") +
                              "; accepted: a codec with error_feedback ef14 or ema, or no "
                              "'average_every'");
        } else if ((rule.match.ops & ~kSums) != 0) {
            report(where,
                   "'average_every' in a rule of operations that sum nothing, whose ranks are owed "
                   "for data of their own; accepted: match = { op = [\"allreduce\", "
                   "\"reducescatter\", \"reduce\"] }, or some of them");
        } else if (action.tensor != TensorBy::kStep) {
            report(where,
                   "'average_every' with tensor = \"address\", by which ranks do not count calls "
                   "alike; accepted: tensor = \"step\", or no 'tensor'");
        } else if (action.intra_codec.has_value()) {
            report(where,
                   "'average_every' with intra_codec, where ranks owe both contributions and "
                   "nodes' sums; accepted: one of them");
        }
    }

    // What cannot work together, as far as the rule says it in so many words.
    void check_combination(const toml::table& table, Rule* rule) {
        Action& action = rule->action;
        if (action.accordion.has_value()) {
            check_accordion(table, *rule);
        }
        const toml::node* ef = table.get("error_feedback");
        ef = ef != nullptr ? ef : table.get("ef");
        const bool native = !action.codec || action.algorithm == Algorithm::kNative;
        if (const toml::node* tensor = table.get("tensor");
            tensor != nullptr && action.tensor != TensorBy::kAddress &&
            (native || (action.error_feedback == ErrorFeedback::kNone && !action.low_rank()))) {
            report(tensor->source(), "tensor = " + quoted(tensor_by_name(action.tensor)) +
                                         " without error feedback; accepted: error_feedback "
                                         "other than \"none\", or no 'tensor'");
        }
        if (action.replicated_state() && action.tensor != TensorBy::kStep) {
            report(
                table.get("tensor")->source(),
                std::string("tensor = \"address\" with ") +
                    (action.low_rank() ? std::string(action.codec->codec->name) + ", whose factors"
                                       : "ef21, whose estimates") +
                    " are equal on all ranks while "
                    "addresses are not; accepted: tensor = \"step\", or no 'tensor'");
        }
        if (action.low_rank() && !native) {
            check_low_rank(table, ef, action);
        }
        if (const toml::node* intra = table.get("intra_codec");
            intra != nullptr && action.intra_codec && !encodes_runs(*action.intra_codec).ok()) {
            report(intra->source(), "intra_codec " + quoted(action.intra_codec->to_string()) +
                                        ", which goes by the algorithm low_rank alone; accepted: "
                                        "any other codec");
        }
        if (action.error_feedback == ErrorFeedback::kEf21 &&
            action.residual_type() != ResidualType::kFloat32) {
            report(table.get("residual")->source(),
                   "'residual' with ef21, whose estimates must not be rounded; accepted: "
                   "residual = \"fp32\", or no 'residual'");
        }
        if (const toml::node* residual = table.get("residual");
            residual != nullptr && (native || action.error_feedback == ErrorFeedback::kNone)) {
            report(residual->source(),
                   "'residual' without error feedback; accepted: error_feedback other than "
                   "\"none\", or no 'residual'");
        }
        check_averaging(table, native, *rule);
        check_preview(table, native, *rule);
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
            if (const toml::node* intra = table.get("intra_codec");
                intra != nullptr && action.intra_codec) {
                report(intra->source(),
                       "intra_codec without a codec; accepted: a codec, or none of both");
            }
            action = {};
            return;
        }
        if (const toml::node* intra = table.get("intra_codec");
            intra != nullptr && action.intra_codec && action.algorithm != Algorithm::kAuto &&
            action.algorithm != Algorithm::kHierarchical) {
            report(intra->source(), "intra_codec with algorithm " +
                                        quoted(algorithm_name(action.algorithm)) +
                                        "; accepted: auto, hierarchical");
        }
        const toml::table* match = table.get("match") ? table.get("match")->as_table() : nullptr;
        if (match == nullptr || !match->contains("op")) {
            rule->match.ops &= ~kNamedOnlyOps;
        }
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
