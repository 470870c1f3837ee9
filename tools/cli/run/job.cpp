#include "tools/cli/run/job.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "codecs/base/descriptor.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/free_port.h"
#include "tools/cli/run/hook.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

// load_config takes a plain function, so the environment it reads is kept here while it runs.
const Environment* g_checked_environment = nullptr;
const char* checked_getenv(const char* name) {
    return g_checked_environment->get(name);
}

// The folder a report pattern leads to must exist and be writable, as far as it holds no '%'.
Status check_report(const std::string& pattern) {
    const fs::path folder = fs::path(pattern).parent_path();
    if (folder.string().find('%') != std::string::npos) {
        return {};
    }
    const fs::path target = folder.empty() ? fs::path(".") : folder;
    std::error_code error;
    if (!fs::is_directory(target, error)) {
        return invalid(
            fmt::format("--report {}: no folder {}; make it first", pattern, target.string()));
    }
    // access() says yes to root where nothing can be made (/proc, read-only mounts).
    std::string probe = (target / ".slimwire-XXXXXX").string();
    if (!Descriptor(::mkostemp(probe.data(), O_CLOEXEC)).valid()) {
        return invalid(fmt::format("--report {}: cannot write into {}: {}; choose another folder",
                                   pattern, target.string(), std::strerror(errno)));
    }
    ::unlink(probe.c_str());
    return {};
}

std::string random_token() {
    std::array<unsigned char, 8> bytes{};
    // 8 bytes never block once the kernel's generator is ready, and come whole.
    (void)!::getrandom(bytes.data(), bytes.size(), 0);
    std::string token;
    for (const unsigned char byte : bytes) {
        token += fmt::format("{:02x}", byte);
    }
    return token;
}

// What shapes the emulated job, and where it was said.
struct EmulatedOption {
    const char* name;
    std::string value;
};
EmulatedOption option_or_variable(const char* option,
                                  const std::string& said,
                                  const char* variable,
                                  const Environment& environment) {
    const char* const there = environment.get(variable);
    return said.empty() && there != nullptr ? EmulatedOption{variable, there}
                                            : EmulatedOption{option, said};
}

bool parse_positive(std::string_view text, int* value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && end == text.data() + text.size() && *value > 0;
}

}  // namespace

Result<Config> configuration_of(const Environment& environment) {
    g_checked_environment = &environment;
    return load_config(checked_getenv);
}

Result<NodeShape> parse_nodes(const std::string& text, const char* name, int most) {
    NodeShape shape;
    const size_t cross = text.find('x');
    if (cross == std::string::npos ||
        !parse_positive(std::string_view(text).substr(0, cross), &shape.nodes) ||
        !parse_positive(std::string_view(text).substr(cross + 1), &shape.ranks_per_node) ||
        int64_t{shape.nodes} * shape.ranks_per_node > most) {
        return invalid(
            fmt::format("{} '{}': accepted: NODESxRANKS_PER_NODE, as 2x4, of at most {} ranks",
                        name, text, most));
    }
    return shape;
}

Result<LinkSpec> parse_link(const std::string& text, const char* name) {
    LinkSpec link;
    const size_t comma = text.find(',');
    Result<double> rate = parse_bits_per_second(std::string_view(text).substr(0, comma));
    if (!rate.ok()) {
        return invalid(
            fmt::format("{} '{}': {}; accepted: RATE or RATE,LATENCY, as 1gbit or "
                        "1gbit,50us",
                        name, text, rate.status().message()));
    }
    link.bits_per_second = rate.value();
    if (comma != std::string::npos) {
        Result<uint64_t> latency = parse_duration_us(std::string_view(text).substr(comma + 1));
        if (!latency.ok()) {
            return invalid(
                fmt::format("{} '{}': {}; accepted: RATE or RATE,LATENCY, as 1gbit or "
                            "1gbit,50us",
                            name, text, latency.status().message()));
        }
        link.latency_us = static_cast<double>(latency.value());
    }
    if (!(link.bits_per_second > 0)) {
        return invalid(fmt::format("{} '{}': the rate must be above zero", name, text));
    }
    return link;
}

void add_policy_options(CLI::App& app, JobOptions* options) {
    CLI::Option* policy =
        app.add_option("--policy", options->policy, "policy file (TOML)")->type_name("FILE");
    app.add_option("--codec", options->codec,
                   "one codec for all sums, as int4 or int8:block=128, instead of a policy")
        ->type_name("SPEC")
        ->excludes(policy);
    app.add_option("--ef", options->error_feedback,
                   "error feedback with --codec: none, ef14, ema or ef21")
        ->type_name("KIND");
    app.add_option("--min-bytes", options->min_bytes,
                   "smaller calls stay native, as 1MiB; auto: as measured or estimated")
        ->type_name("BYTES");
    app.add_option("--calibration", options->calibration,
                   "what slimwire calibrate --out wrote, for rules that leave algorithm or sizes "
                   "open")
        ->type_name("FILE");
    app.add_option("--report", options->report,
                   "report files, one per rank: %h host, %r rank, %p process")
        ->type_name("PATTERN");
    app.add_option(
           "--mode", options->mode,
           "on, record (native, with a trace), shadow (record, and what the policy would do "
           "is tried beside) or off (loaded, but only forwards)")
        ->type_name("MODE");
    app.add_option("--log", options->log, "error, warn, info or debug")->type_name("LEVEL");
    app.add_option("--library", options->library, "use this libslimwire.so")
        ->type_name("FILE")
        ->envname("SLIMWIRE_LIBRARY");
    // CLI11 reports what the lambda throws as it reports its own errors.
    CLI::Option* hook =
        app.add_option_function<std::string>(
               "--hook",
               [options](const std::string& name) {
                   const Result<Hook> chosen = parse_hook(name);
                   if (!chosen.ok()) {
                       throw CLI::ValidationError(chosen.status().message());
                   }
                   options->hook = chosen.value();
                   options->hook_chosen = true;
               },
               "how slimwire gets before NCCL: auto (the default: audit where that works, else "
               "preload), preload (LD_PRELOAD), dropin (a folder on LD_LIBRARY_PATH) or audit "
               "(LD_AUDIT: also by RPATH, path and ctypes); `slimwire doctor -- CMD` says which "
               "ones reach a program")
            ->type_name("NAME");
    app.add_flag_callback(
           "--dropin",
           [options] {
               options->hook = Hook::kDropin;
               options->hook_chosen = true;
           },
           "the same as --hook dropin")
        ->excludes(hook);
    app.add_flag("--native", options->native, "run without slimwire, all else alike");
}

void add_emulator_options(CLI::App& app, JobOptions* options) {
    app.add_option("--emulate", options->ranks,
                   "start this many ranks on the CPU emulator of CUDA and NCCL")
        ->type_name("RANKS")
        ->check(CLI::Range(1, kMostEmulatedRanks));
    app.add_option("--nodes", options->nodes,
                   "emulated nodes and ranks of each, as 2x4; default: every rank is a node")
        ->type_name("NxM");
    app.add_option("--link", options->link,
                   "rate and latency of each emulated node's network, as 1gbit or 1gbit,50us; "
                   "default: unshaped")
        ->type_name("SPEC");
    app.add_option("--port", options->port,
                   "MASTER_PORT of the emulated job, or the next free one; default: any free one")
        ->type_name("PORT")
        ->check(CLI::Range(1, 65535));
}

Environment environment_to_measure_in() {
    Environment environment = Environment::current();
    for (const char* name :
         {"SLIMWIRE_POLICY", "SLIMWIRE_CODEC", "SLIMWIRE_EF", "SLIMWIRE_MIN_BYTES", "SLIMWIRE_OPS",
          "SLIMWIRE_RULE_OFF", "SLIMWIRE_REPORT", "SLIMWIRE_MODE"}) {
        environment.unset(name);
    }
    return environment;
}

Result<Environment> make_job_environment(const JobOptions& options,
                                         const Installation& installation,
                                         Environment base) {
    if (options.ranks == 0) {
        const std::pair<const char*, bool> emulated_only[] = {{"--nodes", !options.nodes.empty()},
                                                              {"--link", !options.link.empty()},
                                                              {"--port", options.port != 0}};
        for (const auto& [flag, given] : emulated_only) {
            if (given) {
                return invalid(fmt::format("{} shapes an emulated job: add --emulate RANKS", flag));
            }
        }
    }
    if (options.native) {
        const std::pair<const char*, bool> slimwires[] = {
            {"--policy", !options.policy.empty()},
            {"--codec", !options.codec.empty()},
            {"--ef", !options.error_feedback.empty()},
            {"--min-bytes", !options.min_bytes.empty()},
            {"--calibration", !options.calibration.empty()},
            {"--report", !options.report.empty()},
            {"--mode", !options.mode.empty()},
            {"--log", !options.log.empty()},
            {"--hook and --dropin", options.hook_chosen}};
        for (const auto& [flag, given] : slimwires) {
            if (given) {
                return invalid(fmt::format("--native runs without slimwire: leave out {}", flag));
            }
        }
        take_hooks_out(&base);
        return base;
    }
    if (!options.report.empty()) {
        SLIMWIRE_TRY(check_report(options.report));
        base.set("SLIMWIRE_REPORT", options.report);
    }
    if (!options.calibration.empty()) {
        base.set("SLIMWIRE_CALIBRATION", fs::absolute(options.calibration).string());
    }
    if (!options.policy.empty()) {
        base.set("SLIMWIRE_POLICY", fs::absolute(options.policy).string());
        base.unset("SLIMWIRE_CODEC");
        base.unset("SLIMWIRE_EF");
    }
    if (!options.codec.empty()) {
        base.set("SLIMWIRE_CODEC", options.codec);
        base.unset("SLIMWIRE_POLICY");
    }
    const std::pair<const char*, const std::string&> plain[] = {
        {"SLIMWIRE_EF", options.error_feedback},
        {"SLIMWIRE_MIN_BYTES", options.min_bytes},
        {"SLIMWIRE_MODE", options.mode},
        {"SLIMWIRE_LOG", options.log}};
    for (const auto& [name, value] : plain) {
        if (!value.empty()) {
            base.set(name, value);
        }
    }
    g_checked_environment = &base;
    for (const auto& [name, path] : absolute_paths(checked_getenv)) {
        base.set(name, path);
    }
    SLIMWIRE_TRY_ASSIGN(const Config config, configuration_of(base));
    // Other policies' the job says itself.
    for (const std::string& warning :
         config.policy.rules.empty() ? config.policy.warnings : std::vector<std::string>()) {
        note("policy " + warning);
    }
    if (config.settings.mode == Mode::kOn && !config.settings.policy.empty() && !config.active &&
        config.policy.runtime.empty() && config.policy.warnings.empty()) {
        note("policy " + config.policy.source + ": no rule compresses: all calls stay native");
    }
    SLIMWIRE_TRY(
        put_hook(options.hook,
                 options.library.empty() ? installation.library : fs::absolute(options.library),
                 installation, options.static_tls_bytes, &base));
    return base;
}

Result<std::vector<Environment>> make_rank_environments(const JobOptions& options,
                                                        const Installation& installation,
                                                        const Environment& job) {
    NodeShape shape{options.ranks, 1};
    const EmulatedOption nodes =
        option_or_variable("--nodes", options.nodes, "SLIMWIRE_EMU_NODES", job);
    if (!nodes.value.empty()) {
        SLIMWIRE_TRY_ASSIGN(shape, parse_nodes(nodes.value, nodes.name));
        const int64_t ranks = int64_t{shape.nodes} * shape.ranks_per_node;
        if (ranks != options.ranks) {
            return invalid(fmt::format("{} {} makes {} ranks, --emulate says {}", nodes.name,
                                       nodes.value, ranks, options.ranks));
        }
    }
    const EmulatedOption link =
        option_or_variable("--link", options.link, "SLIMWIRE_EMU_LINK", job);
    double bits_per_second = 0;
    if (!link.value.empty()) {
        SLIMWIRE_TRY_ASSIGN(const LinkSpec spec, parse_link(link.value, link.name));
        bits_per_second = spec.bits_per_second;
    }
    if (installation.emulator.empty()) {
        return Status(
            Code::kNotFound,
            "the emulator is not there: install libucx-dev and build again (ninja -C build)");
    }
    SLIMWIRE_TRY(check_list_item(installation.emulator, "LD_LIBRARY_PATH", ":;"));
    SLIMWIRE_TRY_ASSIGN(const int port, find_free_port(options.port));

    Environment shared = job;
    shared.prepend("LD_LIBRARY_PATH", installation.emulator.string());
    if (options.hook == Hook::kDropin && !options.native) {
        SLIMWIRE_TRY(
            put_dropin_first(installation, installation.emulator / "libnccl.so.2", &shared));
    }
    shared.set("WORLD_SIZE", std::to_string(options.ranks));
    shared.set("LOCAL_WORLD_SIZE", std::to_string(shape.ranks_per_node));
    shared.set("MASTER_ADDR", "127.0.0.1");
    shared.set("MASTER_PORT", std::to_string(port));
    shared.set("SLIMWIRE_EMU_JOB", random_token());
    // A program picks the device of its local rank, as on a real node.
    shared.set("SLIMWIRE_EMU_DEVICES", std::to_string(shape.ranks_per_node));
    for (const auto& [variable, value] :
         {std::pair("SLIMWIRE_EMU_NODES", nodes.value), {"SLIMWIRE_EMU_LINK", link.value}}) {
        if (value.empty()) {
            shared.unset(variable);
        } else {
            shared.set(variable, value);
        }
    }
    // What a rank has of its node's card, for reports and thresholds as on a real one.
    if (!link.value.empty() && shared.text("SLIMWIRE_BANDWIDTH").empty()) {
        shared.set("SLIMWIRE_BANDWIDTH",
                   fmt::format("{:.0f}bit", std::max(1.0, bits_per_second / shape.ranks_per_node)));
    }
    std::vector<Environment> environments;
    for (int rank = 0; rank < options.ranks; ++rank) {
        Environment& own = environments.emplace_back(shared);
        own.set("RANK", std::to_string(rank));
        own.set("LOCAL_RANK", std::to_string(rank % shape.ranks_per_node));
        own.set("GROUP_RANK", std::to_string(rank / shape.ranks_per_node));
    }
    return environments;
}

}  // namespace slimwire::cli
