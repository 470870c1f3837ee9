// The table of variables: unique, ours, and read as it says (the copy in VARIABLES.md is checked by
// abi.variables_page). From the environment to the effective configuration and the hash that ranks
// compare.
#include "collectives/policy/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "collectives/call/hash.h"
#include "collectives/policy/variables.h"
#include "tests/support/ranks.h"
#include "tests/support/runtime_keys.h"

namespace slimwire {
namespace {

std::map<std::string, std::string> g_environment;

const char* fake_getenv(const char* name) {
    const auto found = g_environment.find(name);
    return found == g_environment.end() ? nullptr : found->second.c_str();
}

Result<Config> load(std::map<std::string, std::string> environment) {
    test::runtime_into_policy(&environment);
    g_environment = std::move(environment);
    std::vector<std::string> entries;
    for (const auto& [name, value] : g_environment) {
        entries.push_back(name + "=" + value);
    }
    std::vector<const char*> pointers;
    for (const std::string& entry : entries) {
        pointers.push_back(entry.c_str());
    }
    pointers.push_back(nullptr);
    return load_config(fake_getenv, pointers.data());
}

Config loaded(std::map<std::string, std::string> environment) {
    auto config = load(std::move(environment));
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config.value() : Config{};
}

std::string config_error_of(std::map<std::string, std::string> environment) {
    const auto config = load(std::move(environment));
    EXPECT_FALSE(config.ok());
    return config.status().message();
}

constexpr CallSignature kGradients = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 1 << 20};
constexpr uint64_t kBytes = 4u << 20;

std::string decision(const Config& config, const CallSignature& signature = kGradients) {
    const Rule* rule = config.policy.match(signature, kBytes, 4, Scope::kInterNode);
    return rule == nullptr ? "-"
                           : rule->name + "/" +
                                 (rule->action.codec ? rule->action.codec->to_string() : "native");
}

TEST(Config, nothing_set_is_inactive_with_the_defaults_of_the_table) {
    const Config config = loaded({{"PATH", "/bin"}});
    EXPECT_FALSE(config.active);
    EXPECT_EQ(config.policy.source, "none");
    EXPECT_EQ(config.settings.mode, Mode::kOn);
    EXPECT_EQ(config.settings.log_level, LogLevel::kWarn);
    EXPECT_EQ(config.settings.min_bytes, 65536u);
    EXPECT_EQ(config.settings.agree_timeout_us, 10'000'000u);
    EXPECT_EQ(config.settings.slice_bytes, 16u << 20);
    EXPECT_EQ(config.settings.max_memory_bytes, 0u);
    EXPECT_TRUE(config.settings.summary);
    EXPECT_TRUE(config.settings.report_pattern.empty());
}

TEST(Config, a_wrong_value_leaves_the_other_settings_usable) {
    ASSERT_FALSE(load({{"SLIMWIRE_CODEC", "int5"},
                       {"runtime.summary", "perhaps"},
                       {"runtime.agree_timeout", "soon"},
                       {"SLIMWIRE_LOG", "info"}})
                     .ok());
    const Settings settings = usable_settings(fake_getenv);
    EXPECT_EQ(settings.agree_timeout_us, 10'000'000u);
    EXPECT_TRUE(settings.summary);
    EXPECT_EQ(settings.log_level, LogLevel::kInfo);
    EXPECT_EQ(settings.min_bytes, 65536u);
}

TEST(Config, every_setting_is_read) {
    const Config config = loaded({{"SLIMWIRE_LOG", "INFO"},
                                  {"runtime.log_file", "/tmp/l.%r"},
                                  {"SLIMWIRE_REPORT", "/tmp/%h.%p%%"},
                                  {"runtime.summary", "off"},
                                  {"SLIMWIRE_NCCL_LIBRARY", "/x/libnccl.so.2"},
                                  {"runtime.agree_timeout", "500ms"},
                                  {"SLIMWIRE_SOCKET_IFNAME", "eth1"},
                                  {"runtime.slice_bytes", "4MiB"},
                                  {"SLIMWIRE_MAX_MEMORY", "2GiB"},
                                  {"SLIMWIRE_SEED", "4294967295"}});
    EXPECT_EQ(config.settings.seed, 4294967295u);
    EXPECT_EQ(config.settings.log_level, LogLevel::kInfo);
    EXPECT_EQ(config.settings.log_file, "/tmp/l.%r");
    EXPECT_EQ(config.settings.report_pattern, "/tmp/%h.%p%%");
    EXPECT_FALSE(config.settings.summary);
    EXPECT_EQ(config.settings.nccl_library, "/x/libnccl.so.2");
    EXPECT_EQ(config.settings.agree_timeout_us, 500'000u);
    EXPECT_EQ(config.settings.socket_ifname, "eth1");
    EXPECT_EQ(config.settings.slice_bytes, 4u << 20);
    EXPECT_EQ(config.settings.max_memory_bytes, 2ull << 30);
}

TEST(Config, min_bytes_is_a_number_or_auto) {
    const auto from = [](const char* min_bytes) {
        const Config config =
            loaded({{"SLIMWIRE_CODEC", "int4"}, {"SLIMWIRE_MIN_BYTES", min_bytes}});
        const Action& action = config.policy.rules.at(0).action;
        return action.auto_bytes ? std::string("auto") : std::to_string(action.min_bytes);
    };
    EXPECT_EQ(from(""), "65536");
    EXPECT_EQ(from("1KiB"), "1024");
    EXPECT_EQ(from("auto"), "auto");
    EXPECT_FALSE(load({{"SLIMWIRE_CODEC", "int4"}, {"runtime.slice_bytes", "auto"}}).ok());
}

TEST(Config, one_codec_variables_make_one_rule) {
    const Config config = loaded({{"SLIMWIRE_CODEC", "int4:block=128"},
                                  {"SLIMWIRE_EF", "ef14"},
                                  {"SLIMWIRE_MIN_BYTES", "1MiB"}});
    EXPECT_TRUE(config.active);
    EXPECT_EQ(config.policy.source, "environment");
    ASSERT_EQ(config.policy.rules.size(), 1u);
    const Rule& rule = config.policy.rules[0];
    EXPECT_EQ(rule.name, "env");
    EXPECT_EQ(rule.action.codec->to_string(), "int4:block=128");
    EXPECT_EQ(rule.action.error_feedback, ErrorFeedback::kEf14);
    EXPECT_EQ(rule.action.min_bytes, 1u << 20);
    for (const RedOp redop : {RedOp::kSum, RedOp::kAvg, RedOp::kPreMulSum}) {
        for (const DType type : {DType::kFloat16, DType::kBfloat16, DType::kFloat32}) {
            EXPECT_EQ(decision(config, {Op::kAllReduce, type, redop, 0, 1}), "env/int4:block=128");
        }
    }
    EXPECT_EQ(decision(config, {Op::kAllReduce, DType::kFloat32, RedOp::kMax, 0, 1}), "-");
    EXPECT_EQ(decision(config, {Op::kAllReduce, DType::kInt64, RedOp::kSum, 0, 1}), "-");
    EXPECT_EQ(decision(config, {Op::kAllGather, DType::kFloat32, RedOp::kNone, 0, 1}), "-");
}

TEST(Config, codec_none_is_native) {
    for (const char* none : {"none", "off", "native"}) {
        const Config config = loaded({{"SLIMWIRE_CODEC", none}});
        EXPECT_FALSE(config.active) << none;
        EXPECT_EQ(decision(config), "env/native") << none;
    }
}

TEST(Config, environment_rule_stands_before_the_file) {
    const std::string file(
        "[[rule]]\nname = \"g\"\nmatch = { op = \"allreduce\", dtype = \"f32\" }\ncodec = "
        "\"int8\"\n"
        "[[rule]]\nname = \"rest\"\ncodec = \"native\"\n");
    const Config both = loaded({{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_CODEC", "int4"}});
    EXPECT_EQ(decision(both), "env/int4");
    EXPECT_EQ(decision(both, {Op::kAllReduce, DType::kFloat32, RedOp::kMax, 0, 1}), "g/int8");
    EXPECT_EQ(decision(both, {Op::kSend, DType::kFloat32, RedOp::kNone, 0, 1}), "rest/native");
    const Config native = loaded({{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_CODEC", "none"}});
    EXPECT_EQ(decision(native), "env/native");
}

TEST(Config, a_file_rule_hidden_by_the_environment_is_a_warning) {
    const std::string file(
        "[[rule]]\nname = \"g\"\nmatch = { op = \"allreduce\", dtype = \"f32\", redop = \"sum\" }\n"
        "codec = \"int8\"\n");
    const Config config = loaded({{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_CODEC", "int4"}});
    ASSERT_EQ(config.policy.warnings.size(), 1u);
    EXPECT_EQ(
        config.policy.warnings[0],
        "SLIMWIRE_POLICY:1: rule 'g' is never reached: earlier rules take all its calls: 'env'");
}

TEST(Config, a_codec_of_the_environment_without_error_feedback_is_a_warning) {
    const Config config = loaded({{"SLIMWIRE_CODEC", "int2"}});
    ASSERT_EQ(config.policy.warnings.size(), 1u);
    EXPECT_EQ(config.policy.warnings[0],
              "environment: rule 'env' has no error feedback, which int2 needs: what an encoding "
              "loses is lost for good; accepted: SLIMWIRE_EF=ef14");
    EXPECT_TRUE(
        loaded({{"SLIMWIRE_CODEC", "int2"}, {"SLIMWIRE_EF", "ef14"}}).policy.warnings.empty());
}

TEST(Config, warnings_are_logged_once_by_the_first_rank) {
    const std::string file(
        "[[rule]]\nname = \"a\"\ncodec = \"int8\"\n[[rule]]\nname = \"b\"\ncodec = \"int4\"\n");
    const Config config = loaded({{"SLIMWIRE_POLICY", file}});
    ::setenv("RANK", "1", 1);
    testing::internal::CaptureStderr();
    log_policy_warnings(config);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    ::setenv("RANK", "0", 1);
    testing::internal::CaptureStderr();
    log_policy_warnings(config);
    log_policy_warnings(config);
    ::unsetenv("RANK");
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "slimwire: warn: SLIMWIRE_POLICY:4: rule 'b' is never reached: earlier rules take "
              "all its calls: 'a'\n");
}

TEST(Config, rule_off_skips_rules_by_name) {
    const std::string file(
        "[[rule]]\nname = \"a\"\ncodec = \"int4\"\n[[rule]]\nname = \"b\"\ncodec = \"int8\"\n");
    EXPECT_EQ(decision(loaded({{"SLIMWIRE_POLICY", file}})), "a/int4");
    EXPECT_EQ(decision(loaded({{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_RULE_OFF", "a"}})), "b/int8");
    const Config neither = loaded({{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_RULE_OFF", "b, a,"}});
    EXPECT_EQ(decision(neither), "-");
    EXPECT_FALSE(neither.active);
    EXPECT_EQ(config_error_of({{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_RULE_OFF", "a,c"}}),
              "SLIMWIRE_RULE_OFF: no rule 'c'; accepted: a, b");
}

TEST(Config, mode_off_ignores_everything_else) {
    const Config config = loaded({{"SLIMWIRE_MODE", "off"},
                                  {"SLIMWIRE_CODEC", "nonsense"},
                                  {"SLIMWIRE_POLICY", "/nonexistent"},
                                  {"SLIMWIRE_TYPO", "1"}});
    EXPECT_EQ(config.settings.mode, Mode::kOff);
    EXPECT_FALSE(config.active);
    EXPECT_TRUE(config.policy.rules.empty());
    // What it tells the other ranks has as long as theirs.
    EXPECT_EQ(config.settings.agree_timeout_us, 10'000'000u);
}

TEST(Config, the_variable_holds_a_path_or_the_policy_itself) {
    const std::string rules = "[[rule]]\nname = \"g\"\ncodec = \"int8\"\n";
    const test::TemporaryFolder folder;
    const std::string path = folder.file("p.toml");
    std::ofstream(path) << "version = 1\n" << rules;
    const Config config = loaded({{"SLIMWIRE_POLICY", path}});
    EXPECT_EQ(config.policy.source, path);
    EXPECT_EQ(loaded({{"SLIMWIRE_POLICY", rules}}).hash, config.hash);
    EXPECT_EQ(loaded({{"SLIMWIRE_POLICY", "version = 1\n" + rules}}).hash, config.hash);
    const Config both = loaded({{"SLIMWIRE_POLICY", "[runtime]\nsummary = false\ntrace_sample = 5"},
                                {"SLIMWIRE_CODEC", "int8"}});
    EXPECT_EQ(both.policy.source, "environment");
    EXPECT_FALSE(both.settings.summary);
    EXPECT_EQ(both.settings.trace_sample, 5u);
    EXPECT_EQ(config_error_of({{"SLIMWIRE_POLICY", "version = 2\n" + rules}}),
              "SLIMWIRE_POLICY:1:11: unknown version 2; accepted: 1");
}

TEST(Config, mode_record_reads_settings_and_no_rules) {
    EXPECT_TRUE(loaded({{"SLIMWIRE_MODE", "record"}, {"SLIMWIRE_POLICY", "/nonexistent"}})
                    .policy.rules.empty());
    const Config config = loaded({{"SLIMWIRE_MODE", "record"},
                                  {"SLIMWIRE_CODEC", "nonsense"},
                                  {"SLIMWIRE_POLICY", "[[rule]]\nname = 7"},
                                  {"SLIMWIRE_TRACE", "/tmp/t.%r"},
                                  {"runtime.trace_bytes", "1MiB"},
                                  {"runtime.trace_sample", "3"}});
    EXPECT_EQ(config.settings.mode, Mode::kRecord);
    EXPECT_FALSE(config.active);
    EXPECT_TRUE(config.policy.rules.empty());
    EXPECT_EQ(config.settings.trace_pattern, "/tmp/t.%r");
    EXPECT_EQ(config.settings.trace_bytes, 1u << 20);
    EXPECT_EQ(config.settings.trace_sample, 3u);
    EXPECT_NE(config_error_of({{"SLIMWIRE_MODE", "record"}, {"SLIMWIRE_TYPO", "1"}}), "");
}

TEST(Config, shadow_reads_the_policy_and_compresses_nothing) {
    const Config config = loaded({{"SLIMWIRE_MODE", "shadow"}, {"SLIMWIRE_CODEC", "int8"}});
    EXPECT_EQ(config.settings.mode, Mode::kShadow);
    EXPECT_TRUE(observes(config.settings.mode));
    EXPECT_FALSE(config.active);
    EXPECT_TRUE(config.policy.has_codec());
    EXPECT_NE(config_error_of({{"SLIMWIRE_MODE", "shadow"}, {"SLIMWIRE_CODEC", "nonsense"}}), "");
    EXPECT_NE(config.hash, loaded({{"SLIMWIRE_MODE", "on"}, {"SLIMWIRE_CODEC", "int8"}}).hash);
}

TEST(Config, state_has_a_folder_and_more) {
    const StateRingSetting alone = loaded({{"SLIMWIRE_STATE", "/ckpt"}}).settings.state_ring;
    EXPECT_EQ(alone.folder, "/ckpt");
    EXPECT_EQ(alone.every, 500u);
    EXPECT_EQ(alone.load, "");
    EXPECT_FALSE(alone.flat_shards);
    const Config config = loaded({{"SLIMWIRE_STATE", "/ckpt,load=700,shards=flat,every=20"}});
    EXPECT_TRUE(config.settings.state_ring.flat_shards);
    EXPECT_EQ(config.settings.state_ring.every, 20u);
    EXPECT_EQ(config.settings.state_ring.load, "700");
    EXPECT_EQ(config.hash, loaded({}).hash);
    EXPECT_EQ(config.settings.state_ring.sums, SumUse::kWhole);
    const auto sums = [](const char* setting) {
        return loaded({{"SLIMWIRE_STATE", setting}}).settings.state_ring.sums;
    };
    EXPECT_EQ(sums("/ckpt,sums=mean"), SumUse::kMean);
    EXPECT_EQ(sums("/ckpt,sums=fsdp,shards=flat"), SumUse::kFsdp);
}

TEST(Config, an_empty_variable_counts_as_absent) {
    const Config config =
        loaded({{"SLIMWIRE_CODEC", ""}, {"SLIMWIRE_EF", ""}, {"SLIMWIRE_LOG", ""}});
    EXPECT_FALSE(config.active);
    EXPECT_EQ(config.hash, loaded({}).hash);
}

TEST(Config, bad_values_name_variable_value_and_what_is_accepted) {
    const std::string policy = "SLIMWIRE_POLICY:2:";
    const std::string state = "SLIMWIRE_STATE: bad value ";
    const struct {
        std::map<std::string, std::string> environment;
        std::string begin;  // of the message
    } kCases[] = {
        {{{"SLIMWIRE_MODE", "maybe"}},
         "SLIMWIRE_MODE: bad value 'maybe'; accepted: off, record, shadow, on"},
        {{{"SLIMWIRE_LOG", "loud"}},
         "SLIMWIRE_LOG: bad value 'loud'; accepted: error, warn, info, debug"},
        {{{"runtime.summary", "2"}}, policy + "11: [runtime]: summary: bad value '2'; accepted: 1"},
        {{{"runtime.agree_timeout", "10"}},
         policy + "17: [runtime]: agree_timeout: bad value '10': duration '10': no unit; accepted: "
                  "a number with us"},
        {{{"runtime.agree_timeout", "0s"}},
         policy + "17: [runtime]: agree_timeout: bad value '0s'; accepted: a time of 1ms or more"},
        {{{"runtime.slice_bytes", "4MB"}},
         policy + "15: [runtime]: slice_bytes: bad value '4MB': size '4MB': unknown unit 'mb'"},
        {{{"SLIMWIRE_STATE", "/ckpt,every=0"}},
         state + "'/ckpt,every=0': 'every=0'; accepted: a folder, also with ,every=STEPS"},
        {{{"SLIMWIRE_STATE", "/ckpt,load=old"}}, state + "'/ckpt,load=old': 'load=old'"},
        {{{"SLIMWIRE_STATE", ",every=5"}}, state + "',every=5': no folder"},
        {{{"SLIMWIRE_STATE", "1,every=5"}}, state + "'1,every=5': no folder"},
        {{{"SLIMWIRE_REPORT", "/tmp/%x"}},
         "SLIMWIRE_REPORT: bad value '/tmp/%x'; accepted: a path with %h, %r, %p, %%"},
        {{{"SLIMWIRE_REPORT", "True"}}, "SLIMWIRE_REPORT: bad value 'True'; accepted: a path"},
        {{{"SLIMWIRE_SEED", "4294967296"}},
         "SLIMWIRE_SEED: bad value '4294967296'; accepted: a whole number below 2^32"},
        {{{"runtime.log_file", "on"}}, policy + "12: [runtime]: log_file: bad value 'on'"},
        {{{"runtime.log_file", "/tmp/100%"}},
         policy + "12: [runtime]: log_file: bad value '/tmp/100%'"},
        {{{"SLIMWIRE_POLICY", "[runtime]\nlog_file = true"}},
         policy + "12: [runtime]: 'log_file' is a boolean; accepted: a path with %h, %r, %p, %%"},
        {{{"SLIMWIRE_POLICY", "[runtime]\nlog_file = 7"}},
         policy + "12: [runtime]: 'log_file' is an integer"},
        {{{"SLIMWIRE_POLICY", "[runtime]\nslice = 7"}},
         policy + "1: [runtime]: unknown key 'slice' of [runtime]; accepted: slice_bytes, "
                  "agree_timeout, trace_bytes, trace_sample, summary, free_suspended, log_file"},
        {{{"SLIMWIRE_EF", "ef14"}},
         "SLIMWIRE_EF is set without SLIMWIRE_CODEC; accepted: both, or the same key in a rule"},
        {{{"SLIMWIRE_MIN_BYTES", "1MiB"}}, "SLIMWIRE_MIN_BYTES is set without SLIMWIRE_CODEC"},
        {{{"SLIMWIRE_CODEC", "int8"}, {"SLIMWIRE_EF", "ef99"}},
         "SLIMWIRE_EF: bad value 'ef99'; accepted: none, ef14, ema, ef21"},
        {{{"SLIMWIRE_CODEC", "none"}, {"SLIMWIRE_EF", "ef14"}},
         "SLIMWIRE_EF=ef14 with SLIMWIRE_CODEC=none; accepted: a codec, or SLIMWIRE_EF=none"},
        {{{"SLIMWIRE_CODEC", "powersgd:row=64"}, {"SLIMWIRE_EF", "ef21"}},
         "SLIMWIRE_EF=ef21 with SLIMWIRE_CODEC=powersgd:row=64, whose factors follow"},
        {{{"SLIMWIRE_CODEC", "linear_ae:average=dp"}},
         "SLIMWIRE_CODEC=linear_ae:average=dp: copies average the autoencoders of calls that "
         "answer each other alone; accepted: average=none, or SLIMWIRE_OPS=send,recv"},
        {{{"SLIMWIRE_CODEC", "linear_ae"}, {"SLIMWIRE_OPS", "alltoall"}},
         "SLIMWIRE_CODEC=linear_ae with SLIMWIRE_OPS=alltoall, of which nothing tells the shapes"},
        {{{"SLIMWIRE_CODEC", "int5"}}, "SLIMWIRE_CODEC: bad value 'int5': "},
    };
    for (const auto& [environment, begin] : kCases) {
        EXPECT_EQ(config_error_of(environment).substr(0, begin.size()), begin);
    }
    const auto messages = load({{"SLIMWIRE_CODEC", "linear_ae"}, {"SLIMWIRE_OPS", "send,recv"}});
    EXPECT_TRUE(messages.ok() && messages.value().policy.wants_rows());
    EXPECT_TRUE(
        load({{"SLIMWIRE_CODEC", "linear_ae:row=64,average=dp"}, {"SLIMWIRE_OPS", "send,recv"}})
            .ok());
}

TEST(Config, a_misspelt_variable_names_the_nearest) {
    EXPECT_EQ(config_error_of({{"SLIMWIRE_POLCY", "p.toml"}}),
              "unknown variable 'SLIMWIRE_POLCY'; accepted: the nearest known is SLIMWIRE_POLICY");
    EXPECT_EQ(config_error_of({{"SLIMWIRE_CODCE", "int8"}}),
              "unknown variable 'SLIMWIRE_CODCE'; accepted: the nearest known is SLIMWIRE_CODEC");
    EXPECT_EQ(config_error_of({{"SLIMWIRE_QUANTISATION", "1"}}),
              "unknown variable 'SLIMWIRE_QUANTISATION'; accepted: those that `slimwire run "
              "--help` lists");
}

TEST(Config, variables_of_kubernetes_services_are_none_of_ours) {
    for (const char* name :
         {"SLIMWIRE_PORT", "SLIMWIRE_SERVICE_HOST", "SLIMWIRE_JOB_SERVICE_PORT",
          "SLIMWIRE_JOB_SERVICE_PORT_HTTP", "SLIMWIRE_JOB_PORT", "SLIMWIRE_JOB_PORT_80_TCP",
          "SLIMWIRE_PORT_53_UDP_ADDR", "SLIMWIRE_JOB_PORT_80_TCP_PROTO"}) {
        EXPECT_FALSE(loaded({{name, "tcp://10.0.0.1:80"}}).active) << name;
    }
}

TEST(Config, variables_of_other_programs_of_ours_are_known) {
    EXPECT_FALSE(loaded({{"SLIMWIRE_EMU_DEVICES", "4"},
                         {"SLIMWIRE_LIBRARY", "/x"},
                         {"SLIMWIRE_TEST_SEED", "1"}})
                     .active);
}

TEST(Config, hash_is_of_what_affects_plans_and_of_nothing_else) {
    const std::string rules = "[[rule]]\nname = \"g\"\ncodec = \"int8\"\n";
    const std::string file(rules);
    const std::string same("# moved and renamed\n\n" + rules);
    const std::string other("[[rule]]\nname = \"g\"\ncodec = \"int4\"\n");
    const uint64_t hash = loaded({{"SLIMWIRE_POLICY", file}}).hash;
    const std::map<std::string, std::string> kSame[] = {
        {{"SLIMWIRE_POLICY", same}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_LOG", "debug"}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_REPORT", "/tmp/%r"}},
        {{"SLIMWIRE_POLICY", file}, {"runtime.summary", "0"}},
        {{"SLIMWIRE_POLICY", file}, {"runtime.agree_timeout", "1s"}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_NCCL_LIBRARY", "/x"}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_EMU_DEVICES", "2"}},
        {{"SLIMWIRE_POLICY", file}, {"runtime.slice_bytes", "16MiB"}},
    };
    for (const auto& environment : kSame) {
        EXPECT_EQ(loaded(environment).hash, hash);
    }
    const std::map<std::string, std::string> kDifferent[] = {
        {},
        {{"SLIMWIRE_MODE", "off"}},
        {{"SLIMWIRE_POLICY", other}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_RULE_OFF", "g"}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_CODEC", "int4"}},
        {{"SLIMWIRE_POLICY", file}, {"runtime.slice_bytes", "1MiB"}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_MAX_MEMORY", "1MiB"}},
        {{"SLIMWIRE_POLICY", file}, {"SLIMWIRE_SEED", "1"}},
    };
    for (const auto& environment : kDifferent) {
        EXPECT_NE(loaded(environment).hash, hash);
    }
    EXPECT_NE(loaded({{"SLIMWIRE_MODE", "off"}}).hash, loaded({}).hash);
    EXPECT_NE(loaded({{"SLIMWIRE_CODEC", "int8"}}).hash,
              loaded({{"SLIMWIRE_CODEC", "int8"}, {"SLIMWIRE_MIN_BYTES", "0"}}).hash);
}

// Ranks of different builds compare hashes: the function may not change without a wire version.
TEST(Config, hash_function_is_fixed) {
    EXPECT_EQ(stable_hash(""), 0xf52a15e9a9b5e89bull);
    EXPECT_EQ(stable_hash("policy 1\n"), stable_hash(std::string("policy 1\n")));
    EXPECT_NE(stable_hash("a"), stable_hash("b"));
}

TEST(Config, origins_name_where_a_value_came_from) {
    g_environment = {{"SLIMWIRE_CODEC", "int8"}, {"SLIMWIRE_EF", ""}};
    std::map<std::string, SettingOrigin> origins;
    for (const SettingOrigin& origin : setting_origins(fake_getenv)) {
        origins[origin.variable] = origin;
    }
    EXPECT_EQ(origins["SLIMWIRE_CODEC"].value, "int8");
    EXPECT_EQ(origins["SLIMWIRE_CODEC"].source, "environment");
    EXPECT_EQ(origins["SLIMWIRE_EF"].source, "default");
    EXPECT_EQ(origins["SLIMWIRE_MIN_BYTES"].value, "64KiB");
    EXPECT_EQ(origins["SLIMWIRE_MIN_BYTES"].source, "default");
    EXPECT_EQ(origins.count("SLIMWIRE_EMU_DEVICES"), 0u);
}

TEST(Variables, names_are_unique_and_ours) {
    std::set<std::string> seen;
    for (const VariableInfo& variable : kVariables) {
        EXPECT_TRUE(seen.insert(variable.name).second) << variable.name;
        EXPECT_EQ(std::string(variable.name).rfind("SLIMWIRE_", 0), 0u) << variable.name;
        EXPECT_EQ(find_variable(variable.name), &variable);
        EXPECT_EQ(std::string(variable.reason).find('|'), std::string::npos) << variable.name;
        EXPECT_GT(std::string(variable.reason).size(), 20u) << variable.name;
    }
    EXPECT_EQ(find_variable("SLIMWIRE_NOTHING"), nullptr);
}

// A default that its own reader would refuse would make every start fail.
TEST(Variables, every_default_is_an_accepted_value) {
    const auto config = load_config([](const char* name) -> const char* {
        const VariableInfo* variable = find_variable(name);
        const bool alone = variable != nullptr && variable->effect != VariableEffect::kPolicy;
        return alone ? variable->default_text : nullptr;
    });
    EXPECT_TRUE(config.ok()) << config.status().message();
}

// A variable that some program reads but the table lacks would make every job refuse to start.
TEST(Variables, whatever_our_sources_read_is_in_the_table) {
    const char* root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    const std::regex reads(
        R"re((?:getenv|envname)\("(SLIMWIRE_[A-Z_]+)"|\$\{?(SLIMWIRE_[A-Z_]+))re");
    namespace fs = std::filesystem;
    std::set<std::string> seen;
    for (const char* room : {"codecs", "collectives", "plugin", "tools", "tests", ".ci"}) {
        if (!fs::exists(fs::path(root) / room)) {
            continue;
        }
        for (const auto& entry : fs::recursive_directory_iterator(fs::path(root) / room)) {
            if (!entry.is_regular_file() || entry.file_size() > 1 << 20) {
                continue;
            }
            std::ifstream file(entry.path());
            for (std::string line; std::getline(file, line);) {
                if (line.find("SLIMWIRE_") == std::string::npos) {
                    continue;
                }
                for (std::sregex_iterator hit(line.begin(), line.end(), reads), end; hit != end;
                     ++hit) {
                    const std::string name = (*hit)[1].matched ? (*hit)[1] : (*hit)[2];
                    EXPECT_NE(find_variable(name), nullptr) << name << " in " << entry.path();
                    seen.insert(name);
                }
            }
        }
    }
    EXPECT_TRUE(seen.count("SLIMWIRE_EMU_DEVICES") == 1 && seen.count("SLIMWIRE_TEST_SEED") == 1)
        << "the search finds nothing";
}

}  // namespace
}  // namespace slimwire
