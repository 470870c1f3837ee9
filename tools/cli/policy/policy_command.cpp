// `slimwire policy check` and `policy env`: what slimwire would understand, before a job depends on
// it.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "codecs/residual/load_store.h"
#include "collectives/call/hash.h"
#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "collectives/policy/policy.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/outcome.h"
#include "tools/cli/common/stamp.h"
#include "tools/cli/policy/variables_help.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PolicyOptions {
    std::vector<std::string> files;
    bool json = false;
};

std::vector<std::string> bits_to_names(uint32_t bits, const std::vector<std::string_view>& names) {
    std::vector<std::string> chosen;
    for (size_t i = 0; i < names.size(); ++i) {
        if ((bits >> i & 1u) != 0) {
            chosen.emplace_back(names[i]);
        }
    }
    return chosen;
}

std::string step_word(const StepAheadRule& rule) {
    return rule.told            ? "told"
           : rule.step_size > 0 ? fmt::format("{:g}", rule.step_size)
                                : "estimated";
}

Json match_json(const Match& match) {
    Json json = Json::object();
    const auto add_set = [&json](const char* key, uint32_t bits, uint32_t all, const auto& names) {
        if ((bits & all) != all) {
            json[key] = bits_to_names(bits, names);
        }
    };
    add_set("op", match.ops, kAllOps, op_names());
    add_set("dtype", match.dtypes, kAllDTypes, dtype_names());
    add_set("redop", match.redops, kAllRedOps, redop_names());
    if (match.min_bytes != 0) {
        json["min_bytes"] = match.min_bytes;
    }
    if (match.max_bytes != ~0ull) {
        json["max_bytes"] = match.max_bytes;
    }
    if (match.min_ranks != 0) {
        json["min_ranks"] = match.min_ranks;
    }
    if (match.max_ranks != INT32_MAX) {
        json["max_ranks"] = match.max_ranks;
    }
    if (match.scope) {
        json["scope"] = scope_name(*match.scope);
    }
    if (!match.comms.empty()) {
        json["comm"] = match.comms;
    }
    for (int role = 0; role < kRoleCount; ++role) {
        if ((match.roles >> role & 1u) != 0) {
            json["role"].push_back(role_name(static_cast<Role>(role)));
        }
    }
    for (const ParameterMatch::Indices& ordinals : match.ordinals) {
        json["ordinal"].push_back(indices_text(ordinals));
    }
    if (match.parameters.dimensions != ParameterMatch::kAllDimensions) {
        json["param"] = dimensions_texts(match.parameters.dimensions);
    }
    if (!match.parameters.indices.empty()) {
        for (const ParameterMatch::Indices& indices : match.parameters.indices) {
            json["index"].push_back(indices_text(indices));
        }
    }
    if (!match.parameters.names.empty()) {
        json["name"] = match.parameters.names;
    }
    return json;
}

// Of a worker; the owner of a sum keeps as much for each of its elements.
double residual_bytes_per_element(const Action& action) {
    constexpr uint64_t kElems = 64 * kResidualBlock;
    const int buffers = action.error_feedback == ErrorFeedback::kEf21 ? 2 : 1;
    return buffers * static_cast<double>(stored_residual_bytes(action.residual_type(), kElems)) /
           static_cast<double>(kElems);
}

Json rule_json(const Rule& rule) {
    const Action& action = rule.action;
    Json json{{"name", rule.name}, {"line", rule.line}, {"off", rule.off}};
    json["match"] = match_json(rule.match);
    json["codec"] = action.codec ? action.codec->to_string() : "native";
    json["algorithm"] = algorithm_name(action.algorithm);
    json["error_feedback"] = error_feedback_name(action.error_feedback);
    if (action.error_feedback != ErrorFeedback::kNone) {
        json["residual"] = residual_type_name(action.residual_type());
        json["residual_bytes_per_element"] = residual_bytes_per_element(action);
    }
    json["tensor"] = tensor_by_name(action.tensor);
    for (const RampStage& stage : action.ramp) {
        json["ramp"].push_back(
            {{"until", stage.until}, {"codec", stage.codec ? stage.codec->to_string() : "native"}});
    }
    if (action.accordion.has_value()) {
        const AccordionRule& rule = *action.accordion;
        json["accordion"] = {{"low", rule.low.to_string()},
                             {"window", rule.window},
                             {"ratio", rule.ratio_ppm * 1e-6},
                             {"hysteresis", rule.hysteresis},
                             {"lr_drops", rule.lr_drops}};
    }
    if (action.average_every > 0) {
        json["average_every"] = action.average_every;
        json["average_codec"] = action.average_codec ? action.average_codec->to_string() : "native";
    }
    if (action.preview.has_value()) {
        const StepAheadRule& rule = *action.preview;
        json["preview"] = {{"gain", rule.gain_ppm * 1e-6}, {"step_size", step_word(rule)}};
    }
    json["start_step"] = action.start_step;
    json["min_bytes"] = action.auto_bytes ? Json("auto") : Json(action.min_bytes);
    return json;
}

std::string rule_text(const Rule& rule) {
    std::string match;
    const Json json = match_json(rule.match);
    for (const auto& [key, value] : json.items()) {
        std::string text;
        if (value.is_array()) {
            for (const Json& item : value) {
                text += (text.empty() ? "" : ", ") + item.get<std::string>();
            }
        } else if (value.is_string()) {
            text = value.get<std::string>();
        } else {
            text = key.find("bytes") != std::string::npos ? format_bytes(value.get<double>())
                                                          : std::to_string(value.get<int64_t>());
        }
        match += fmt::format("{}{} {}", match.empty() ? "" : "; ", key, text);
    }
    const Action& action = rule.action;
    std::string result = "native";
    if (action.codec) {
        result = fmt::format("{}, algorithm {}, error feedback {}", action.codec->to_string(),
                             algorithm_name(action.algorithm),
                             error_feedback_name(action.error_feedback));
        if (action.error_feedback != ErrorFeedback::kNone) {
            const double bytes = residual_bytes_per_element(action);
            result += fmt::format(" in {}: {:.4g} bytes an element, {:.1f} GB a rank for 7e9",
                                  residual_type_name(action.residual_type()), bytes, 7 * bytes);
        }
        if (action.low_rank()) {
            result += fmt::format(
                "; factors of {0} floats a row and a column of each matrix, kept: {0} a column",
                action.codec->params.kept);
        }
        if (action.tensor != TensorBy::kAddress) {
            result += fmt::format(", tensors by {}", tensor_by_name(action.tensor));
        }
        for (const RampStage& stage : action.ramp) {
            result += fmt::format(", until call {} {}", stage.until,
                                  stage.codec ? stage.codec->to_string() : "native");
        }
        if (action.accordion.has_value()) {
            result += fmt::format(", or {} by windows of {} calls",
                                  action.accordion->low.to_string(), action.accordion->window);
        }
        if (action.average_every > 0) {
            result += fmt::format(
                ", residuals averaged every {} of a tensor's calls {}", action.average_every,
                action.average_codec ? "by " + action.average_codec->to_string() : "as they are");
        }
        if (action.preview.has_value()) {
            result += fmt::format(", gathers moved by {:g} of what is owed, steps {}",
                                  action.preview->gain_ppm * 1e-6, step_word(*action.preview));
        }
        if (action.start_step != 0) {
            result += fmt::format(", from step {}", action.start_step);
        }
        if (action.auto_bytes) {
            result += ", where that is faster";
        }
        if (action.min_bytes != 0) {
            result += fmt::format(", from {}", format_bytes(static_cast<double>(action.min_bytes)));
        }
    }
    return fmt::format("  {}{}: {}\n      {}\n", rule.name, rule.off ? " (off)" : "",
                       match.empty() ? "every call" : match, result);
}

std::string hash_text(const Policy& policy) {
    return fmt::format("{:016x}", stable_hash(policy.canonical()));
}

int check(const PolicyOptions& options) {
    int exit_code = kSuccess;
    for (const std::string& file : options.files) {
        Result<Policy> loaded = load_policy_file(file);
        if (!loaded.ok()) {
            exit_code = fail(kCheckFailed, loaded.status());
            if (options.json) {
                Json json = stamped("policy_check");
                json["file"] = file;
                json["ok"] = false;
                json["error"] = loaded.status().message();
                fmt::print("{}\n", json.dump());
            }
            continue;
        }
        const Policy& policy = loaded.value();
        if (options.json) {
            Json json = stamped("policy_check");
            json["file"] = file;
            json["ok"] = true;
            json["hash"] = hash_text(policy);
            json["rules"] = Json::array();
            for (const Rule& rule : policy.rules) {
                json["rules"].push_back(rule_json(rule));
            }
            json["warnings"] = policy.warnings;
            fmt::print("{}\n", json.dump());
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
    }
    return exit_code;
}

int show_environment(bool as_json) {
    const Result<Config> config = load_config(process_getenv);
    const std::vector<SettingOrigin> origins = setting_origins(process_getenv);
    if (as_json) {
        Json json = stamped("policy_env");
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
        fmt::print("{}\n", json.dump());
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
