#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <exception>

#include "tools/cli/common/commands.h"
#include "tools/cli/common/exit_code.h"
#include "tools/cli/common/run_metadata.h"

namespace slimwire::cli {
namespace {

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
    try {
        // CLI11 takes the arguments from the back.
        std::reverse(arguments.begin(), arguments.end());
        app.parse(arguments);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {  // --help, --version
            return app.exit(error);
        }
        std::string text = error.what();
        if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
            text += "; a command stands behind --, see slimwire --help";
        }
        return fail(kUsage, text);
    }
    return invocation->action();
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
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
        return parse_and_run(std::move(arguments), &invocation);
    } catch (const std::exception& error) {
        return fail(kCannotStart, fmt::format("unexpected: {}", error.what()));
    }
}

}  // namespace slimwire::cli
