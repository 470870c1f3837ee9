// `slimwire run`: everything is checked first, then the command is started with slimwire in it.
// Without --emulate this process becomes the command, so signals and exit codes are the command's
// own.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "codecs/base/descriptor.h"
#include "collectives/call/launcher.h"
#include "collectives/policy/variables.h"
#include "tools/cli/common/argument_checks.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/run/hook.h"
#include "tools/cli/run/job.h"
#include "tools/cli/run/launcher.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli {
namespace {

// Learns whether any process of a job called NCCL through slimwire, and says so where none did: the
// job is then native, and would be silent about it. A socket whose name the job inherits
// (SLIMWIRE_RUN_SOCKET) gets a byte from each process that slimwire enters (call/launcher.h);
// processes that inherit no environment, on other hosts or in other containers, are not heard.
class ReachWatch {
  public:
    // Puts the socket's name into the job's environment. None where an outer `slimwire run` watches
    // already, or the machine has no such sockets.
    static std::optional<ReachWatch> start(Environment* environment);

    // Whether a process has said so by now.
    [[nodiscard]] bool reached() const noexcept;
    // Leaves a process behind that waits for the first of two: a process says so, or this process,
    // which is about to become the command, has ended; then it notes `text`. It holds stderr alone,
    // is no child of the command, and gets the terminal's signals.
    void outlive(const std::string& text) const;
    // This process does not become the command after all.
    void dismiss() const noexcept;

  private:
    ReachWatch(Descriptor socket, std::string name)
        : socket_(std::move(socket)), name_(std::move(name)) {}

    Descriptor socket_;
    std::string name_;
};

[[noreturn]] void wait_beside(int job, int socket, const std::string& text) {
    ::prctl(PR_SET_NAME, "slimwire-watch");
    (void)!::chdir("/");
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDOUT_FILENO);
    // Nothing that somebody waits to be closed stays open here.
    ::dup2(std::min(job, socket), 3);
    ::dup2(std::max(job, socket), 4);
    (void)::close_range(5, ~0u, 0);
    pollfd polled[] = {{job < socket ? 3 : 4, POLLIN, 0}, {job < socket ? 4 : 3, POLLIN, 0}};
    while (::poll(polled, 2, -1) < 0 && errno == EINTR) {
    }
    if (polled[1].revents == 0) {
        note(text);
    }
    ::_exit(0);
}

std::optional<ReachWatch> ReachWatch::start(Environment* environment) {
    if (const char* outer = environment->get(kRunSocketVariable);
        outer != nullptr && tell_run(outer, false)) {
        return std::nullopt;
    }
    Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t length = sizeof address.sun_family;  // the kernel chooses an abstract name
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket.valid() || ::bind(socket.fd(), generic, length) != 0 ||
        (length = sizeof address, ::getsockname(socket.fd(), generic, &length) != 0)) {
        return std::nullopt;
    }
    const std::string name(address.sun_path + 1, length - sizeof address.sun_family - 1);
    environment->set(kRunSocketVariable, name);
    return ReachWatch(std::move(socket), name);
}

bool ReachWatch::reached() const noexcept {
    char byte = 0;
    return ::recv(socket_.fd(), &byte, 1, MSG_PEEK) > 0;
}

void ReachWatch::outlive(const std::string& text) const {
    const Descriptor self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    if (std::min(self.fd(), socket_.fd()) <= STDERR_FILENO) {
        return;  // an old kernel; or our own stdin and stdout were closed
    }
    const pid_t child = ::fork();
    if (child == 0) {
        if (::fork() == 0) {
            wait_beside(self.fd(), socket_.fd(), text);
        }
        ::_exit(0);
    }
    while (child > 0 && ::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
}

void ReachWatch::dismiss() const noexcept {
    tell_run(name_.c_str(), true);
}

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
    const std::vector<char*> arguments = pointers_to(&command);
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
    SLIMWIRE_OR_FAIL_ASSIGN(kCannotStart, Environment environment,
                            make_job_environment(job, installation, Environment::current()));
    Result<std::filesystem::path> program = find_command(command[0], environment);
    if (!program.ok()) {
        return fail(program.status().code() == Code::kNotFound ? kNotFound : kNotExecutable,
                    program.status());
    }
    const std::optional<ReachWatch> watch =
        job.native ? std::nullopt : watch_reach(choice, &environment);

    if (job.ranks > 0) {
        SLIMWIRE_OR_FAIL_ASSIGN(kCannotStart, std::vector<Environment> ranks,
                                make_rank_environments(job, installation, environment));
        warn_about_libraries(program.value(), ranks.front());
        const int code = launch_ranks({.command = command,
                                       .environments = std::move(ranks),
                                       .prefix = !options.no_prefix,
                                       .grace_seconds = options.grace_seconds});
        if (code == 0 && watch.has_value() && !watch->reached()) {
            note(unreached_text(choice, command[0]));
        }
        return code;
    }

    warn_about_libraries(program.value(), environment);
    if (job.hook == Hook::kDropin && !job.native) {
        SLIMWIRE_OR_FAIL_ASSIGN(kCannotStart, const std::filesystem::path real,
                                find_nccl_of(program.value(), environment));
        SLIMWIRE_OR_FAIL(kCannotStart, put_dropin_first(installation, real, &environment));
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
