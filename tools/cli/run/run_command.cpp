// `slimwire run`: everything is checked first, then the command is started with slimwire in it.
// Without --emulate this process becomes the command, so signals and exit codes are the command's
// own.
#include <fmt/core.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

#include "collectives/policy/variables.h"
#include "tools/cli/common/argument_checks.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/exit_code.h"
#include "tools/cli/run/auto_hook.h"
#include "tools/cli/run/dropin.h"
#include "tools/cli/run/job.h"
#include "tools/cli/run/launcher.h"
#include "tools/cli/run/loader_search.h"
#include "tools/cli/run/reach_watch.h"

namespace slimwire::cli {
namespace {

struct RunOptions {
    JobOptions job;
    bool no_prefix = false;
    double grace_seconds = 30;
};

// A program that the loader will refuse for want of NCCL or CUDA, or that slimwire cannot enter, is
// told so in our words first. Scripts and launchers are not looked into: `doctor` does that.
void warn_about_libraries(const std::filesystem::path& program, const Environment& environment) {
    Result<ElfFile> elf = read_elf(program);
    if (!elf.ok()) {
        return;
    }
    const ElfFile& file = elf.value();
    if (!same_architecture(file)) {
        note(fmt::format("{} is for {}: libslimwire.so of this machine cannot be loaded into it",
                         program.string(), architecture_name(file.elf_class, file.machine)));
        return;
    }
    if (gains_rights(program)) {
        note(fmt::format(
            "{} has its owner's rights (setuid, setgid or capabilities): the loader keeps "
            "LD_PRELOAD and LD_AUDIT out of it; start a copy without them",
            program.string()));
        return;
    }
    const Result<LoadPlan> plan = list_libraries(file, environment);
    const bool is_static = file.interpreter.empty();
    if (is_static || (plan.ok() && holds_nccl(program, plan.value()))) {
        note(fmt::format("{} {}: slimwire cannot reach it; link NCCL dynamically", program.string(),
                         is_static ? "is statically linked" : "has NCCL linked in statically"));
        return;
    }
    for (const char* name : {"libnccl.so", "libcudart.so"}) {
        const LoadedObject* missing = plan.ok() ? plan.value().find(name) : nullptr;
        if (missing != nullptr && missing->path.empty()) {
            note(fmt::format(
                "{} needs {}, which is not found; set LD_LIBRARY_PATH to its folder, or "
                "run on the emulator with --emulate RANKS",
                program.string(), missing->name));
        }
    }
}

// What a job is told that asked for slimwire and was not reached by it.
std::string unreached_text(const HookChoice& choice, const std::string& command) {
    return fmt::format(
        "warn: no process of {} called NCCL through slimwire on {}, so slimwire did nothing (hook "
        "{}: {}), or its network namespace hides it; {}; `slimwire doctor -- {}` says how it binds "
        "NCCL",
        command, host_name(), hook_name(choice.hook), choice.reason,
        choice.hook == Hook::kPreload
            ? "--hook audit reaches programs that open NCCL themselves, too"
            : "a launcher must pass the environment on, and NCCL must be loaded, not linked in",
        command);
}

// Says which hook was taken, and watches whether slimwire gets into the job where it is asked to do
// something. Of the processes of one launcher, the first watches.
std::optional<ReachWatch> watch_reach(const HookChoice& choice, Environment* environment) {
    const Result<Config> config = configuration_of(*environment);
    if (!config.ok()) {
        return std::nullopt;
    }
    const Settings& settings = config.value().settings;
    if (settings.log_level >= LogLevel::kInfo) {
        note(fmt::format("info: hook {}: {}", hook_name(choice.hook), choice.reason));
    }
    const bool asked = config.value().active || observes(settings.mode);
    return asked && settings.log_level >= LogLevel::kWarn && launcher_rank().value_or(0) == 0
               ? ReachWatch::start(environment)
               : std::nullopt;
}

int become_command(std::vector<std::string> command, Environment* environment) {
    std::vector<char*> arguments;
    for (std::string& argument : command) {
        arguments.push_back(argument.data());
    }
    arguments.push_back(nullptr);
    const std::vector<char*> variables = environment->pointers();
    ::execvpe(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    return fail(error == ENOENT   ? kNotFound
                : error == EACCES ? kNotExecutable
                                  : kCannotStart,
                fmt::format("{}: {}", command[0], std::strerror(error)));
}

std::string wrapped(const std::string& text, const std::string& indent) {
    constexpr size_t kColumns = 96;
    std::string out;
    std::string line = indent;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (line.size() > indent.size() && line.size() + 1 + word.size() > kColumns) {
            out += line + '\n';
            line = indent;
        }
        line += (line.size() > indent.size() ? " " : "") + word;
    }
    return out + line + '\n';
}

// Of collectives/policy/variables.def, for --help.
std::string variables_help() {
    std::string out = "Environment variables (options win over them):\n";
    for (const VariableInfo& variable : kVariables) {
        out += fmt::format("  {}: {}{}\n", variable.name, accepted_values(variable.kind),
                           *variable.default_text != '\0'
                               ? fmt::format("; default {}", variable.default_text)
                               : std::string());
        out += wrapped(variable.reason, "      ");
    }
    return out;
}

int run(const RunOptions& options, const Invocation& invocation) {
    const std::vector<std::string>& command = invocation.command;
    if (!invocation.has_command || command.empty()) {
        return fail(kUsage,
                    "run: no command; put it behind --, as slimwire run --codec int4 -- ./train");
    }
    const Installation installation = find_installation();
    JobOptions job = options.job;
    HookChoice choice{job.hook, "as --hook says"};
    if (!job.native) {
        const Environment outer = Environment::current();
        if (job.hook == Hook::kAuto) {
            choice = choose_hook(command, outer, installation, job.library);
            job.hook = choice.hook;
        }
        if (job.hook == Hook::kAudit) {
            job.static_tls_bytes = static_tls_bytes(command, outer);
        }
    }
    Result<Environment> made = make_job_environment(job, installation, Environment::current());
    if (!made.ok()) {
        return fail(kCannotStart, made.status());
    }
    Environment environment = std::move(made).value();
    Result<std::filesystem::path> program = find_command(command[0], environment);
    if (!program.ok()) {
        return fail(program.status().code() == Code::kNotFound ? kNotFound : kNotExecutable,
                    program.status());
    }
    const std::optional<ReachWatch> watch =
        job.native ? std::nullopt : watch_reach(choice, &environment);

    if (job.ranks > 0) {
        Result<std::vector<Environment>> ranks =
            make_rank_environments(job, installation, environment);
        if (!ranks.ok()) {
            return fail(kCannotStart, ranks.status());
        }
        warn_about_libraries(program.value(), ranks.value().front());
        const int code = launch_ranks({.command = command,
                                       .environments = std::move(ranks).value(),
                                       .prefix = !options.no_prefix,
                                       .grace_seconds = options.grace_seconds});
        if (code == 0 && watch.has_value() && !watch->reached()) {
            note(unreached_text(choice, command[0]));
        }
        return code;
    }

    warn_about_libraries(program.value(), environment);
    if (job.hook == Hook::kDropin && !job.native) {
        Result<std::filesystem::path> real = find_nccl_of(program.value(), environment);
        const Status put =
            real.ok() ? put_dropin_first(installation, real.value(), &environment) : real.status();
        if (!put.ok()) {
            return fail(kCannotStart, put);
        }
    }
    if (watch.has_value()) {
        watch->outlive(unreached_text(choice, command[0]));
    }
    const int code = become_command(command, &environment);
    if (watch.has_value()) {
        watch->dismiss();
    }
    return code;
}

}  // namespace

void add_run_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* run_app = app.add_subcommand(
        "run", "run a command with slimwire in it: slimwire run [options] -- CMD...");
    options->job.hook = Hook::kAuto;
    add_policy_options(*run_app, &options->job);
    add_emulator_options(*run_app, &options->job);
    run_app->add_flag("--no-prefix", options->no_prefix, "no \"[rank] \" in front of output lines");
    run_app
        ->add_option("--grace", options->grace_seconds,
                     "seconds the other ranks may take to end after one failed")
        ->type_name("SECONDS")
        ->check(number_between(0, 1e6))
        ->capture_default_str();
    run_app->footer([] {
        return fmt::format(
            "Signals are passed on to every rank; a third SIGINT or SIGTERM kills them.\n{}\n\n{}",
            kExitCodeHelp, variables_help());
    });
    run_app->callback(
        [options, invocation] { invocation->action = [=] { return run(*options, *invocation); }; });
}

}  // namespace slimwire::cli
