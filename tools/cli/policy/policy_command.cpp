// `slimwire policy check` and `policy env`: what slimwire would understand, before a job depends on
// it.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "codecs/residual/load_store.h"
#include "collectives/call/hash.h"
#include "collectives/plan/decision.h"
#include "collectives/policy/config.h"
#include "collectives/policy/policy.h"
#include "collectives/policy/policy_keys.h"
#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/optimizers.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PolicyOptions {
    std::vector<std::string> files;
    bool json = false;
};

Json json_of(const Value& value) {
    return std::visit(
        [](const auto& held) -> Json {
            using Held = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<Held, std::monostate>) {
                return nullptr;
            } else if constexpr (std::is_same_v<Held, CodecSpec>) {
                return held.to_string();
            } else if constexpr (std::is_same_v<Held, Value::List>) {
                Json json = Json::array();
                for (const Value& item : held) {
                    json.push_back(json_of(item));
                }
                return json;
            } else if constexpr (std::is_same_v<Held, Value::Table>) {
                Json json = Json::object();
                for (const auto& [key, item] : held) {
                    json[std::string(key)] = json_of(item);
                }
                return json;
            } else {
                return held;
            }
        },
        value.held);
}

// Of a worker; the owner of a sum keeps as much for each of its elements.
double residual_bytes_per_element(const Action& action) {
    constexpr uint64_t kElems = 64 * kResidualBlock;
    const int buffers = action.error_feedback == ErrorFeedback::kEf21 ? 2 : 1;
    return buffers * static_cast<double>(stored_residual_bytes(action.residual_type(), kElems)) /
           static_cast<double>(kElems);
}

Json rule_json(const Rule& rule) {
    Json json{{"name", rule.name}, {"line", rule.line}, {"off", rule.off}};
    json["match"] = json_of(value_of(match_values(rule.match)));
    for (const Key& key : action_keys()) {
        if (const Value value = key.of(rule.action); key.same_as.empty() && !value.absent()) {
            json[std::string(key.name)] = json_of(value);
        }
    }
    if (rule.action.error_feedback != ErrorFeedback::kNone) {
        json["residual_bytes_per_element"] = residual_bytes_per_element(rule.action);
    }
    return json;
}

// "op allreduce; bytes 4 MiB".
std::string value_text(std::string_view key, const Value& value) {
    const bool bytes = key.find("bytes") != std::string_view::npos && value.word().empty();
    return fmt::format("{} {}", key,
                       bytes ? format_bytes(static_cast<double>(value.count())) : value.text());
}

std::string rule_text(const Rule& rule) {
    std::string match, result;
    for (const auto& [key, value] : match_values(rule.match)) {
        match += (match.empty() ? "" : "; ") + value_text(key, value);
    }
    const Action& action = rule.action;
    for (const Key& key : action_keys()) {
        if (key.said_by(action)) {
            result += (result.empty() ? "" : ", ") + value_text(key.name, key.of(action));
        }
    }
    if (action.error_feedback != ErrorFeedback::kNone) {
        const double bytes = residual_bytes_per_element(action);
        result += fmt::format("; residuals of {:.4g} bytes an element, {:.1f} GB a rank for 7e9",
                              bytes, 7 * bytes);
    }
    if (action.low_rank()) {
        result += fmt::format(
            "; factors of {0} floats a row and a column of each matrix, kept: {0} a column",
            action.codec->params.kept);
        result += learns_rows(rule) ? fmt::format("; rows of messages: {}", kTellRows) : "";
    }
    return fmt::format("  {}{}: {}\n      {}\n", rule.name, rule.off ? " (off)" : "",
                       match.empty() ? "every call" : match, result.empty() ? "native" : result);
}

std::string hash_text(const Policy& policy) {
    return fmt::format("{:016x}", stable_hash(policy.canonical()));
}

// Whether an encoding loses more than there is of Gaussian data: error feedback then gives the next
// one more than that can bring, and what it keeps grows. So of coarse roundings without a bias.
bool grows_with_feedback(const CodecSpec& codec) {
    constexpr int64_t kElems = 1 << 14;
    if (codec.traits(DType::kFloat32).low_rank) {
        return false;
    }
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> data(kElems);
    for (float& value : data) {
        value = normal(random);
    }
    CodecTrial trial(codec, DType::kFloat32, kElems, reinterpret_cast<const uint8_t*>(data.data()),
                     0);
    trial.encode();
    trial.decode(false);
    return trial.error() >= 1;
}

constexpr char kGrows[] =
    "loses more of what it encodes than there is, so that what error_feedback keeps grows to many "
    "times the gradients; take \"none\", or a codec of more bits";

// What is known of the policy's codecs beyond what a plan must know: that there is none, under
// which optimizer they lose, and with which error feedback.
std::vector<std::string> codec_notes(const Policy& policy) {
    std::vector<std::string> notes;
    if (!policy.has_codec() && policy.warnings.empty()) {
        notes.emplace_back("no rule compresses: all calls stay native");
    }
    for (const Rule& rule : policy.rules) {
        const std::optional<CodecSpec>& codec = rule.action.codec;
        if (rule.off || !codec.has_value()) {
            continue;
        }
        const bool grows =
            rule.action.error_feedback != ErrorFeedback::kNone && grows_with_feedback(*codec);
        const bool gradients = (rule.match.ops & kCarryingOps) != 0 &&
                               !carries_activations(rule.action, Op::kReduceScatter);
        if (grows || (gradients && loses_under_adam(*codec))) {
            notes.push_back(fmt::format("rule '{}': {} {}", rule.name, codec->to_string(),
                                        grows ? kGrows : kUnderAdam));
        }
    }
    return notes;
}

int check(const PolicyOptions& options) {
    int exit_code = kSuccess;
    for (const std::string& file : options.files) {
        Result<Policy> loaded = load_policy_file(file);
        if (!loaded.ok()) {
            exit_code = fail(kCheckFailed, loaded.status());
            if (options.json) {
                Json json = json_record("policy_check");
                json["file"] = file;
                json["ok"] = false;
                json["error"] = loaded.status().message();
                fmt::print("{}\n", json_line(json));
            }
            continue;
        }
        const Policy& policy = loaded.value();
        if (options.json) {
            Json json = json_record("policy_check");
            json["file"] = file;
            json["ok"] = true;
            json["hash"] = hash_text(policy);
            json["rules"] = Json::array();
            for (const Rule& rule : policy.rules) {
                json["rules"].push_back(rule_json(rule));
            }
            json["warnings"] = policy.warnings;
            json["notes"] = codec_notes(policy);
            fmt::print("{}\n", json_line(json));
            continue;
        }
        fmt::print("{}: {} rule{}, hash {}\n", file, policy.rules.size(),
                   policy.rules.size() == 1 ? "" : "s", hash_text(policy));
        for (const Rule& rule : policy.rules) {
            fmt::print("{}", rule_text(rule));
        }
        for (const std::string& warning : policy.warnings) {
            fmt::print("  warning: {}\n", warning);
        }
        for (const std::string& note : codec_notes(policy)) {
            fmt::print("  note: {}\n", note);
        }
    }
    return exit_code;
}

int show_environment(bool as_json) {
    const Result<Config> config = load_config(process_getenv);
    const std::vector<SettingOrigin> origins = setting_origins(process_getenv);
    if (as_json) {
        Json json = json_record("policy_env");
        json["ok"] = config.ok();
        if (config.ok()) {
            json["active"] = config.value().active;
            json["hash"] = fmt::format("{:016x}", config.value().hash);
            json["policy"] = config.value().policy.source;
        } else {
            json["error"] = config.status().message();
        }
        json["variables"] = Json::array();
        for (const SettingOrigin& origin : origins) {
            json["variables"].push_back(
                {{"name", origin.variable}, {"value", origin.value}, {"source", origin.source}});
        }
        fmt::print("{}\n", json_line(json));
    } else {
        for (const SettingOrigin& origin : origins) {
            fmt::print("{:<26} {:<24} {}\n", origin.variable, origin.value, origin.source);
        }
        if (config.ok()) {
            fmt::print("slimwire would be {}; policy: {}; configuration hash {:016x}\n",
                       config.value().active ? "active" : "inactive", config.value().policy.source,
                       config.value().hash);
        }
    }
    return config.ok() ? kSuccess : fail(kCheckFailed, config.status());
}

}  // namespace

void add_policy_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<PolicyOptions>();
    CLI::App* policy = app.add_subcommand("policy", "check a policy before a job depends on it");
    policy->require_subcommand(1);

    CLI::App* check_app =
        policy->add_subcommand("check", "parse policy files and print the rules as understood");
    check_app->add_option("files", options->files, "policy files (TOML)")->required();
    check_app->add_flag("--json", options->json, "one JSON line per file");
    check_app->callback([=] { invocation->action = [=] { return check(*options); }; });

    CLI::App* env_app = policy->add_subcommand(
        "env", "print every variable with its value here and where the value came from");
    env_app->add_flag("--json", options->json, "one JSON line");
    env_app->callback(
        [=] { invocation->action = [=] { return show_environment(options->json); }; });
}

}  // namespace slimwire::cli
