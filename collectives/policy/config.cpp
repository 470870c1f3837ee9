#include "collectives/policy/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "codecs/base/removed_words.h"
#include "codecs/low_rank/low_rank.h"
#include "codecs/pair_mode.h"
#include "codecs/spec.h"
#include "collectives/call/hash.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/policy/calibration_file.h"
#include "collectives/policy/names.h"
#include "collectives/policy/policy_keys.h"
#include "collectives/policy/variables.h"

namespace slimwire {
namespace {

constexpr std::string_view kPrefix = "SLIMWIRE_";

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

Status bad_value(const VariableInfo& variable, std::string_view text, std::string_view why = {}) {
    return {Code::kInvalidArgument,
            std::string(variable.name) + ": bad value '" + std::string(text) + "'" +
                (why.empty() ? "" : ": " + std::string(why)) +
                (why.find("accepted: ") == std::string_view::npos
                     ? "; accepted: " + std::string(accepted_values(variable.kind))
                     : "")};
}

template <class E, size_t N>
Status pick(const VariableInfo& variable,
            const std::string& text,
            const std::pair<const char*, E> (&choices)[N],
            E* out) {
    for (const auto& [name, value] : choices) {
        if (lower(text) == name) {
            *out = value;
            return {};
        }
    }
    return bad_value(variable, text);
}

Status convert(const VariableInfo& variable, const std::string& text, Mode* out) {
    constexpr std::pair<const char*, Mode> kChoices[] = {{"off", Mode::kOff},
                                                         {"record", Mode::kRecord},
                                                         {"shadow", Mode::kShadow},
                                                         {"on", Mode::kOn}};
    return pick(variable, text, kChoices, out);
}

Status convert(const VariableInfo& variable, const std::string& text, LogLevel* out) {
    constexpr std::pair<const char*, LogLevel> kChoices[] = {{"error", LogLevel::kError},
                                                             {"warn", LogLevel::kWarn},
                                                             {"info", LogLevel::kInfo},
                                                             {"debug", LogLevel::kDebug}};
    return pick(variable, text, kChoices, out);
}

Status convert(const VariableInfo& variable, const std::string& text, bool* out) {
    constexpr std::pair<const char*, bool> kChoices[] = {
        {"1", true},  {"on", true},   {"true", true},   {"yes", true},
        {"0", false}, {"off", false}, {"false", false}, {"no", false}};
    return pick(variable, text, kChoices, out);
}

constexpr uint64_t kLeastDurationUs = 1000;  // that ranks wait for each other

Status convert(const VariableInfo& variable, const std::string& text, uint64_t* out) {
    if (variable.kind == VariableKind::kBytesOrAuto && text == "auto") {
        *out = kAutoBytes;
        return {};
    }
    Result<uint64_t> value =
        variable.kind == VariableKind::kDuration ? parse_duration_us(text) : parse_bytes(text);
    if (!value.ok()) {
        return bad_value(variable, text, value.status().message());
    }
    if (variable.kind == VariableKind::kDuration && value.value() < kLeastDurationUs) {
        return bad_value(variable, text);
    }
    *out = value.value();
    return {};
}

Status convert(const VariableInfo& variable, const std::string& text, uint32_t* out) {
    const char* const end = text.data() + text.size();
    uint32_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) {
        return bad_value(variable, text);
    }
    *out = value;
    return {};
}

Status convert(const VariableInfo& variable, const std::string& text, double* out) {
    if (text.empty()) {
        *out = 0;
        return {};
    }
    Result<double> value = parse_bits_per_second(text);
    if (!value.ok()) {
        return bad_value(variable, text, value.status().message());
    }
    *out = value.value();
    return {};
}

Status convert(const VariableInfo& variable, const std::string& text, std::string* out) {
    if (variable.kind == VariableKind::kNetCodec) {
        const std::string codec = text.substr(0, text.find(','));
        if ((codec != "palette" && codec != "off") ||
            (text != codec && text != codec + ",checksum")) {
            return bad_value(variable, text);
        }
    }
    if (variable.kind == VariableKind::kPattern) {
        if (is_switch(text)) {
            return bad_value(variable, text);
        }
        for (size_t i = text.find('%'); i != std::string::npos; i = text.find('%', i + 2)) {
            if (i + 1 == text.size() ||
                std::string_view("hrp%").find(text[i + 1]) == std::string_view::npos) {
                return bad_value(variable, text);
            }
        }
    }
    *out = text;
    return {};
}

Status convert(const VariableInfo& variable, const std::string& text, StateRingSetting* out) {
    StateRingSetting ring;
    const auto number = [](const std::string& digits, uint64_t* value) {
        const char* const end = digits.data() + digits.size();
        const auto [stop, error] = std::from_chars(digits.data(), end, *value);
        return error == std::errc() && stop == end;
    };
    size_t begin = std::min(text.find(','), text.size());
    ring.folder = text.substr(0, begin);
    while (begin < text.size()) {
        const size_t end = std::min(text.find(',', begin + 1), text.size());
        const std::string word = text.substr(begin + 1, end - begin - 1);
        const std::string value = word.substr(std::min(word.find('=') + 1, word.size()));
        uint64_t step = 0;
        const bool every =
            word.starts_with("every=") && number(value, &ring.every) && ring.every > 0;
        const bool load = word.starts_with("load=") &&
                          (value == "newest" || value == "none" || number(value, &step));
        const bool flat = word == "shards=flat", mean = word == "sums=mean";
        if (!every && !load && !flat && !mean && word != "sums=fsdp") {
            return bad_value(variable, text, "'" + word + "'");
        }
        ring.load = load ? value : ring.load;
        ring.flat_shards |= flat;
        if (word.starts_with("sums=")) {
            ring.sums = mean ? SumUse::kMean : SumUse::kFsdp;
        }
        begin = end;
    }
    if ((ring.folder.empty() && !text.empty()) || is_switch(ring.folder)) {
        return bad_value(variable, text, "no folder");
    }
    *out = std::move(ring);
    return {};
}

// Absent and empty are the same: scripts write "SLIMWIRE_CODEC= command" to mean none.
const char* set_value(GetenvFunction getenv_function, const char* name) {
    const char* const value = getenv_function(name);
    return value != nullptr && value[0] != '\0' ? value : nullptr;
}

// Calls setting(name, member) for each variable and runtime(info, member) for each key of
// [runtime].
template <class Setting, class Runtime>
void for_each_member(Settings* settings, const Setting& setting, const Runtime& runtime) {
    const VariableInfo* key = kRuntimeKeys;
#define SLIMWIRE_SETTING(member, name, kind, default_text, effect, reason) \
    setting(#name, &settings->member);
#define SLIMWIRE_RUNTIME(member, name, kind, default_text, reason) \
    runtime(*key++, &settings->member);
#define SLIMWIRE_VARIABLE(name, kind, default_text, reader, reason)
#include "collectives/policy/variables.def"
#undef SLIMWIRE_SETTING
#undef SLIMWIRE_RUNTIME
#undef SLIMWIRE_VARIABLE
}

// Defaults of the tables convert; a test holds them to it.
constexpr auto kToDefault = [](const VariableInfo& variable, auto* member) {
    (void)convert(variable, std::string(variable.default_text), member);
};

Status read_settings(GetenvFunction getenv_function, Settings* settings) {
    Status status;
    for_each_member(
        settings,
        [&](const char* name, auto* member) {
            status = status.ok() ? read_variable(getenv_function, name, member) : status;
        },
        kToDefault);
    return status;
}

// Kubernetes gives each container variables that are named after the services of its namespace,
// here "slimwire-...": X_PORT, X_SERVICE_HOST, X_SERVICE_PORT_NAME, X_PORT_80_TCP_ADDR.
bool of_kubernetes(std::string_view rest) noexcept {
    const auto has = [&](std::string_view part) {
        return rest.find(part) != std::string_view::npos;
    };
    return rest == "PORT" || rest.ends_with("_PORT") || has("SERVICE_HOST") ||
           has("SERVICE_PORT") || (has("PORT_") && (has("_TCP") || has("_UDP") || has("_SCTP")));
}

Status check_names(const char* const* environment) {
    for (; *environment != nullptr; ++environment) {
        const std::string_view entry(*environment);
        const std::string_view name = entry.substr(0, entry.find('='));
        if (!name.starts_with(kPrefix) || find_variable(name) != nullptr ||
            of_kubernetes(name.substr(kPrefix.size()))) {
            continue;
        }
        const std::string unknown = "unknown variable '" + std::string(name) + "'";
        // A job does not end over what would only have said more.
        const std::string ignored = removed_hint(RemovedKind::kReportVariable, name);
        if (!ignored.empty()) {
            log_once(LogLevel::kWarn, name, unknown + ignored);
            continue;
        }
        const std::string hint = removed_hint(RemovedKind::kVariable, name);
        if (!hint.empty()) {
            return {Code::kInvalidArgument, unknown + hint};
        }
        // Compared without the prefix, which would make everything look alike.
        std::vector<std::string_view> known;
        for (const VariableInfo& variable : kVariables) {
            known.push_back(std::string_view(variable.name).substr(kPrefix.size()));
        }
        const std::string_view best = nearest_word(name.substr(kPrefix.size()), known);
        return {Code::kInvalidArgument,
                unknown + (best.empty() ? "; accepted: those that `slimwire run --help` lists"
                                        : "; accepted: the nearest known is " +
                                              std::string(kPrefix) + std::string(best))};
    }
    return {};
}

std::vector<std::string> words_of(const std::string& list) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin <= list.size() && !list.empty();) {
        const size_t end = std::min(list.find(',', begin), list.size());
        std::string word = list.substr(begin, end - begin);
        word.erase(0, word.find_first_not_of(' '));
        word.erase(word.find_last_not_of(' ') + 1);
        if (!word.empty()) {
            words.push_back(std::move(word));
        }
        begin = end + 1;
    }
    return words;
}

Result<uint32_t> parse_operations(const std::string& list) {
    uint32_t ops = 0;
    for (const std::string& word : words_of(list)) {
        const std::optional<Op> op = parse_op(word);
        if (!op && word != "all") {
            return bad_value(*find_variable("SLIMWIRE_OPS"), list,
                             "no operation '" + word + "'" + suggestion(word, op_names()) +
                                 "; accepted: all, or some of " + join(op_names()));
        }
        ops |= op ? ops_with(*op) : kAllOps;
    }
    return ops;
}

Status apply_runtime(const Policy& policy, Settings* settings) {
    for (const auto& [key, text] : policy.runtime) {
        SLIMWIRE_TRY(set_runtime(key, text, settings));
    }
    return {};
}

// Puts the rule that the one-codec variables make before the rules of the file.
Status add_environment_rule(GetenvFunction getenv_function,
                            const Settings& settings,
                            Policy* policy) {
    if (settings.codec.empty()) {
        for (const char* name : {"SLIMWIRE_EF", "SLIMWIRE_MIN_BYTES", "SLIMWIRE_OPS"}) {
            if (set_value(getenv_function, name) != nullptr) {
                return {Code::kInvalidArgument,
                        std::string(name) +
                            " is set without SLIMWIRE_CODEC; accepted: both, or the "
                            "same key in a rule of the policy file"};
            }
        }
        return {};
    }
    Rule rule;
    rule.name = kEnvironmentRule;
    Result<std::optional<CodecSpec>> codec = parse_codec_or_native(settings.codec);
    if (!codec.ok()) {
        return bad_value(*find_variable("SLIMWIRE_CODEC"), settings.codec,
                         codec.status().message());
    }
    rule.action.codec = codec.value();
    const std::optional<ErrorFeedback> feedback = parse_error_feedback(settings.error_feedback);
    if (!feedback) {
        return bad_value(*find_variable("SLIMWIRE_EF"), settings.error_feedback);
    }
    if (!rule.action.codec && *feedback != ErrorFeedback::kNone) {
        return {Code::kInvalidArgument, "SLIMWIRE_EF=" + settings.error_feedback +
                                            " with SLIMWIRE_CODEC=" + settings.codec +
                                            "; accepted: a codec, or SLIMWIRE_EF=none"};
    }
    rule.action.error_feedback = *feedback;
    if (rule.action.low_rank() && *feedback == ErrorFeedback::kEf21) {
        return {Code::kInvalidArgument, "SLIMWIRE_EF=ef21 with SLIMWIRE_CODEC=" + settings.codec +
                                            ", whose factors follow a gradient by themselves; "
                                            "accepted: none, ef14, ema"};
    }
    SLIMWIRE_TRY_ASSIGN(rule.match.ops, parse_operations(settings.operations));
    if (rule.action.pairs_masks()) {
        return {Code::kInvalidArgument,
                "SLIMWIRE_CODEC=" + settings.codec +
                    ": pair=mask is for messages between stages; accepted: pair=none, or a rule of "
                    "a policy with match = { op = [\"send\", \"recv\"] }"};
    }
    if (rule.action.low_rank() && rule.action.codec->params.row == 0 &&
        (rule.match.ops & kCarryingOps) == 0 && !learns_rows(rule)) {
        return {Code::kInvalidArgument,
                "SLIMWIRE_CODEC=" + settings.codec + " with SLIMWIRE_OPS=" + settings.operations +
                    ", of which nothing tells the shapes; accepted: row=, the elements of a row, "
                    "of activations the hidden size"};
    }
    if (rule.action.codec && autoencodes(*rule.action.codec) &&
        averaged_role(rule.action.codec->params) >= 0 && !goes_by_answers(rule)) {
        return {Code::kInvalidArgument,
                "SLIMWIRE_CODEC=" + settings.codec +
                    ": copies average the autoencoders of calls that answer each other alone; "
                    "accepted: average=none, or SLIMWIRE_OPS=send,recv"};
    }
    rule.match.redops = kCompressedRedOps;
    rule.match.dtypes = 0;
    for (const DType type : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
        if (!rule.action.codec || rule.action.codec->accepts(type)) {
            rule.match.dtypes |= bit_of(type);
        }
    }
    if (rule.action.codec) {
        rule.action.auto_bytes = settings.min_bytes == kAutoBytes;
        rule.action.min_bytes = rule.action.auto_bytes ? 0 : settings.min_bytes;
    }
    if (policy->rules.empty()) {
        policy->source = "environment";
    }
    policy->rules.insert(policy->rules.begin(), std::move(rule));
    return {};
}

Status apply_rule_off(const std::string& list, Policy* policy) {
    for (const std::string& name : words_of(list)) {
        const auto rule = std::find_if(policy->rules.begin(), policy->rules.end(),
                                       [&](const Rule& r) { return r.name == name; });
        if (rule == policy->rules.end()) {
            std::vector<std::string_view> names;
            for (const Rule& r : policy->rules) {
                names.emplace_back(r.name);
            }
            return {
                Code::kInvalidArgument,
                "SLIMWIRE_RULE_OFF: no rule '" + name + "'" + suggestion(name, names) +
                    "; accepted: " + (names.empty() ? "nothing, there are no rules" : join(names))};
        }
        rule->off = true;
    }
    return {};
}

// The settings that affect plans themselves; variables' names in words for people.
std::string settings_text(const Config& config, const std::string& prefix = {}) {
    const Settings& s = config.settings;
    const auto word = [&](const char* plain, const char* variable, const std::string& value) {
        return (prefix.empty() ? plain : prefix + variable) + "=" + value;
    };
    return word("mode", "MODE", mode_name(s.mode)) +
           " slice_bytes=" + std::to_string(s.slice_bytes) + " " +
           word("max_memory_bytes", "MAX_MEMORY", std::to_string(s.max_memory_bytes)) + " " +
           word("seed", "SEED", std::to_string(s.seed)) +
           (config.calibrations == nullptr ? ""
                                           : " " + word("calibration", "CALIBRATION",
                                                        std::to_string(config.calibration_hash))) +
           "\n";
}

}  // namespace

std::string compared_text(const Config& config) {
    std::string text = settings_text(config, "SLIMWIRE_");
    for (const Rule& rule : config.policy.rules) {
        if (rule.off) {
            continue;
        }
        text += "rule '" + rule.name + "'" +
                (rule.line == 0 ? " of SLIMWIRE_CODEC and the like" : "") + ":";
        for (const auto& [key, value] : match_values(rule.match)) {
            text += " " + std::string(key) + "=" + value.text();
        }
        for (const Key& key : action_keys()) {
            if (const Value value = key.of(rule.action); key.same_as.empty() && !value.absent()) {
                text += " " + std::string(key.name) + "=" + value.text();
            }
        }
        text += "\n";
    }
    return text;
}

const char* mode_name(Mode mode) noexcept {
    constexpr const char* kNames[] = {"off", "record", "shadow", "on"};
    return kNames[static_cast<int>(mode)];
}

template <class T>
Status read_variable(GetenvFunction getenv_function, const char* name, T* out) {
    const VariableInfo& variable = *find_variable(name);
    const char* const value = set_value(getenv_function, name);
    const std::string text = value != nullptr ? value : variable.default_text;
    // An empty default is the empty text of a string setting; no other kind has one.
    return convert(variable, text, out);
}
template Status read_variable(GetenvFunction, const char*, bool*);
template Status read_variable(GetenvFunction, const char*, uint64_t*);
template Status read_variable(GetenvFunction, const char*, uint32_t*);
template Status read_variable(GetenvFunction, const char*, double*);
template Status read_variable(GetenvFunction, const char*, std::string*);

bool is_switch(const std::string& text) {
    constexpr VariableInfo kSwitch = {
        "", VariableKind::kBool, "", VariableEffect::kNone, VariableReader::kLibrary, ""};
    bool unused = false;
    return convert(kSwitch, text, &unused).ok();
}

std::vector<std::pair<const char*, std::string>> absolute_paths(GetenvFunction getenv_function) {
    using enum VariableKind;
    std::vector<std::pair<const char*, std::string>> paths;
    const char* const mode = set_value(getenv_function, "SLIMWIRE_MODE");
    const bool traces = mode != nullptr &&
                        (mode == std::string_view("record") || mode == std::string_view("shadow"));
    for (const VariableInfo& variable : kVariables) {
        const bool is_path = variable.kind == kPattern || variable.kind == kPath ||
                             variable.kind == kStateRing;  // each look costs every process
        const char* const value = is_path ? set_value(getenv_function, variable.name) : nullptr;
        const bool usual = traces && variable.kind == kPattern;
        const std::string text = value != nullptr ? value : usual ? variable.default_text : "";
        // A folder or a pattern that is none is refused as it was written.
        if (text.empty() || text.front() == '/' || is_switch(text.substr(0, text.find(',')))) {
            continue;
        }
        char folder[4096];
        if (getcwd(folder, sizeof folder) == nullptr) {
            break;
        }
        std::string absolute;
        for (const char* c = folder; *c != '\0'; ++c) {
            absolute += *c == '%' && variable.kind == kPattern ? "%%" : std::string(1, *c);
        }
        if (variable.kind == kPattern || (variable.kind == kPath && !access(text.c_str(), F_OK)) ||
            (variable.kind == kStateRing && absolute.find(',') == std::string::npos)) {
            paths.emplace_back(variable.name, absolute + "/" + text);
        }
    }
    return paths;
}

Status set_runtime(std::string_view key, const std::string& text, Settings* settings) {
    Status status(Code::kInvalidArgument, "unknown key '" + std::string(key) + "' of [runtime]");
    for_each_member(
        settings, [](const char*, const auto*) {},
        [&](const VariableInfo& variable, auto* member) {
            status = key == variable.name ? convert(variable, text, member) : status;
        });
    return status;
}

Status check_variable_names(const char* const* environment) {
    return check_names(environment != nullptr ? environment : ::environ);
}

Settings usable_settings(GetenvFunction getenv_function) {
    Settings settings;
    for_each_member(
        &settings,
        [&](const char* name, auto* member) {
            if (!read_variable(getenv_function, name, member).ok()) {
                kToDefault(*find_variable(name), member);
            }
        },
        kToDefault);
    const Result<Policy> policy = load_policy(settings.policy, PolicyParts::kRuntime);
    if (policy.ok()) {
        (void)apply_runtime(policy.value(), &settings);
    }
    return settings;
}

Result<Config> load_config(GetenvFunction getenv_function, const char* const* environment) {
    Config config;
    config.policy.source = "none";
    SLIMWIRE_TRY(read_variable(getenv_function, "SLIMWIRE_MODE", &config.settings.mode));
    if (config.settings.mode == Mode::kOff) {
        // By these the rank tells the others that it is off.
        const Settings usable = usable_settings(getenv_function);
        config.settings.agree_timeout_us = usable.agree_timeout_us;
        config.settings.socket_ifname = usable.socket_ifname;
    } else {
        SLIMWIRE_TRY(check_names(environment != nullptr ? environment : ::environ));
        SLIMWIRE_TRY(read_settings(getenv_function, &config.settings));
    }
    if (config.settings.mode == Mode::kRecord) {
        const Result<Policy> policy = load_policy(config.settings.policy, PolicyParts::kRuntime);
        if (!policy.ok() && policy.status().code() != Code::kNotFound) {
            return policy.status();
        }
        if (policy.ok()) {
            SLIMWIRE_TRY(apply_runtime(policy.value(), &config.settings));
        }
    }
    if (config.settings.mode == Mode::kOn || config.settings.mode == Mode::kShadow) {
        SLIMWIRE_TRY_ASSIGN(config.policy, load_policy(config.settings.policy, PolicyParts::kAll));
        SLIMWIRE_TRY(apply_runtime(config.policy, &config.settings));
        SLIMWIRE_TRY(add_environment_rule(getenv_function, config.settings, &config.policy));
        SLIMWIRE_TRY(apply_rule_off(config.settings.rule_off, &config.policy));
        if (const std::string& path = config.settings.calibration_path; !path.empty()) {
            Result<std::vector<Calibration>> read =
                load_named_calibrations(path, &config.calibration_hash);
            if (!read.ok()) {
                return Status(read.status().code(),
                              "SLIMWIRE_CALIBRATION: " + read.status().message());
            }
            config.calibrations =
                std::make_shared<const std::vector<Calibration>>(std::move(read).value());
        }
        if (!config.policy.rules.empty()) {  // also that of SLIMWIRE_CODEC
            config.policy.warnings = policy_warnings(config.policy);
        }
        config.active = config.settings.mode == Mode::kOn && config.policy.has_codec();
        config.listens =
            config.active && (config.policy.wants_parameters() || config.policy.wants_steps() ||
                              config.policy.wants_rows());
    }
    config.hash = stable_hash(settings_text(config) + config.policy.canonical());
    return config;
}

void log_policy_warnings(const Config& config) {
    if (launcher_rank().value_or(0) != 0) {
        return;
    }
    for (const std::string& warning : config.policy.warnings) {
        log_once(LogLevel::kWarn, "policy " + warning, warning);
    }
}

std::vector<SettingOrigin> setting_origins(GetenvFunction getenv_function) {
    std::vector<SettingOrigin> origins;
    for (const VariableInfo& variable : kVariables) {
        if (variable.reader == VariableReader::kLibrary) {
            const char* const value = set_value(getenv_function, variable.name);
            origins.push_back({variable.name, value != nullptr ? value : variable.default_text,
                               value != nullptr ? "environment" : "default"});
        }
    }
    return origins;
}

}  // namespace slimwire
