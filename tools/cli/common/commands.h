// The subcommands: each adds itself to the application and, when chosen, stores what to run.
// main.cpp splits the command behind "--" off before anything is parsed, so options of the command
// are never taken for ours.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace slimwire::cli {

struct Invocation {
    std::vector<std::string> command;  // what stood behind "--"
    bool has_command = false;          // whether "--" was there
    std::function<int()> action;       // set by the chosen subcommand; returns the exit code
};

void add_run_command(CLI::App& app, Invocation* invocation);
void add_policy_command(CLI::App& app, Invocation* invocation);
void add_explain_command(CLI::App& app, Invocation* invocation);
void add_doctor_command(CLI::App& app, Invocation* invocation);
void add_codec_command(CLI::App& app, Invocation* invocation);
void add_report_command(CLI::App& app, Invocation* invocation);
void add_bench_command(CLI::App& app, Invocation* invocation);
void add_topo_command(CLI::App& app, Invocation* invocation);
void add_advise_command(CLI::App& app, Invocation* invocation);
void add_calibrate_command(CLI::App& app, Invocation* invocation);
void add_state_command(CLI::App& app, Invocation* invocation);

// Parses and runs; the body of main, with errors of every kind turned into one line and an exit
// code.
int run_cli(int argc, const char* const* argv);

}  // namespace slimwire::cli
