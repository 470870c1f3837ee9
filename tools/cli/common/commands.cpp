#include "tools/cli/common/commands.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <system_error>

#include "collectives/call/log.h"
#include "collectives/policy/names.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        names.push_back(command->get_name());
    }
    return names;
}

// What is wrong with the words before the first option where they are no commands; CLI11 would only
// miss one. `path`: the commands that `app` is of.
std::string unknown_command(const CLI::App& app,
                            std::span<const std::string> arguments,
                            const std::string& path = "") {
    const std::vector<std::string> names = commands_of(app);
    if (names.empty() || arguments.empty() || arguments[0].empty() || arguments[0][0] == '-') {
        return "";
    }
    if (std::find(names.begin(), names.end(), arguments[0]) != names.end()) {
        return unknown_command(*app.get_subcommand(arguments[0]), arguments.subspan(1),
                               path + arguments[0] + " ");
    }
    const std::vector<std::string_view> words(names.begin(), names.end());
    return fmt::format("unknown command '{}{}'{}; accepted: {}", path, arguments[0],
                       suggestion(arguments[0], words), join(words));
}

// What is wrong with arguments that nobody took, in their order, or that are missing: one that was
// spelt wrong explains another that seems to be.
std::string wrong_arguments(const CLI::App& app, const CLI::ParseError& error) {
    const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    if (!missing && dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) {
        return error.what();
    }
    const std::vector<std::string> words = app.remaining(true);
    const CLI::App* command = &app;
    std::string path;
    while (!command->get_subcommands().empty()) {
        command = command->get_subcommands().back();
        path += " " + command->get_name();
    }
    const auto option = std::find_if(words.begin(), words.end(), [](const std::string& word) {
        return word.size() > 1 && word[0] == '-';
    });
    if (option == words.end() && missing) {
        const std::vector<std::string> names = commands_of(*command);
        return names.empty()
                   ? error.what()
                   : fmt::format("no command behind slimwire{}; accepted: {}", path,
                                 join(std::vector<std::string_view>(names.begin(), names.end())));
    }
    if (option == words.end()) {
        return fmt::format(
            "'{}' was not expected; a command stands behind --, see slimwire{} --help",
            words.empty() ? "" : words.front(), path);
    }
    std::vector<std::string> names;
    for (const CLI::Option* known : command->get_options()) {
        for (const std::string& name : known->get_lnames()) {
            names.push_back("--" + name);
        }
    }
    const std::string name = option->substr(0, option->find('='));
    return fmt::format(
        "unknown option '{}'{}; a command stands behind --, see slimwire{} --help", name,
        suggestion(name, std::vector<std::string_view>(names.begin(), names.end())), path);
}

// An empty value, as a shell's variable that is not set leaves it, would pass for no option at all.
void refuse_empty_values(CLI::App* app) {
    for (CLI::Option* option : app->get_options()) {
        if (option->get_items_expected_min() > 0) {
            option->check([](const std::string& text) {
                return std::string(text.empty() ? "is empty; accepted: a value, or no such option"
                                                : "");
            });
        }
    }
    for (CLI::App* command : app->get_subcommands([](CLI::App*) { return true; })) {
        refuse_empty_values(command);
    }
}

int parse_and_run(std::vector<std::string> arguments, Invocation* invocation) {
    CLI::App app{"slimwire: compressed collectives for unmodified NCCL programs", "slimwire"};
    app.require_subcommand(1);
    app.set_version_flag("--version", fmt::format("slimwire {} ({})", kVersion, kCommit));
    app.set_help_all_flag("--help-all", "help of all subcommands");
    app.footer(kExitCodeHelp);
    add_run_command(app, invocation);
    add_policy_command(app, invocation);
    add_explain_command(app, invocation);
    add_doctor_command(app, invocation);
    add_report_command(app, invocation);
    add_codec_command(app, invocation);
    add_bench_command(app, invocation);
    add_topo_command(app, invocation);
    add_advise_command(app, invocation);
    add_calibrate_command(app, invocation);
    add_state_command(app, invocation);
    refuse_empty_values(&app);
    if (const std::string text = unknown_command(app, arguments); !text.empty()) {
        return fail(kUsage, text);
    }
    try {
        // CLI11 takes the arguments from the back.
        std::reverse(arguments.begin(), arguments.end());
        app.parse(arguments);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {  // --help, --version
            return app.exit(error);
        }
        return fail(kUsage, wrong_arguments(app, error));
    }
    return invocation->action();
}

// A descriptor that is closed would be given to the next file that is opened, and what is printed
// would go there: it fails instead, as on a closed one.
void keep_standard_descriptors() {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
        if (::fcntl(fd, F_GETFD) < 0) {
            (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

// `code`, or a failure where not all that was printed reached standard output.
int close_output(int code) {
    const bool lost = std::ferror(stdout) != 0;
    if (std::fflush(stdout) != 0) {
        return output_lost(code, errno);
    }
    return lost ? output_lost(code, EIO) : code;  // before, by an errno that is gone
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
    keep_standard_descriptors();
    Invocation invocation;
    std::vector<std::string> arguments;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (invocation.has_command) {
            invocation.command.push_back(argument);
        } else if (argument == "--") {
            invocation.has_command = true;
        } else {
            arguments.push_back(argument);
        }
    }
    try {
        return close_output(parse_and_run(std::move(arguments), &invocation));
    } catch (const std::system_error& error) {
        // fmt throws what fwrite says where the output is longer than the buffer.
        return std::ferror(stdout) != 0
                   ? output_lost(kSuccess, error.code().value())
                   : fail(kCannotStart, fmt::format("unexpected: {}", error.what()));
    } catch (const std::exception& error) {
        return fail(kCannotStart, fmt::format("unexpected: {}", error.what()));
    }
}

namespace {

// One write per line, so that lines of several processes do not mix.
void write_line(std::string_view text) {
    const std::string line = visible(text) + '\n';
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (n <= 0) {
            return;
        }
        done += static_cast<size_t>(n);
    }
}

}  // namespace

int fail(int exit_code, std::string_view text) {
    write_line(fmt::format("slimwire: error: {}", text));
    return exit_code;
}

int output_lost(int code, int error) {
    return fail(
        code == kSuccess ? kCannotStart : code,
        fmt::format("standard output: {}; what was printed is not complete", std::strerror(error)));
}

void note(std::string_view text) {
    write_line(fmt::format("slimwire: {}", text));
}

void note_all(const std::vector<std::string>& texts) {
    std::for_each(texts.begin(), texts.end(), note);
}

}  // namespace slimwire::cli
