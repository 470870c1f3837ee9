// The subcommands, and how each ends: exit codes and errors. A command adds itself to the
// application and, when chosen, stores what to run.
//
// main.cpp splits the command behind "--" off before anything is parsed, so options of the command
// are never taken for ours.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codecs/base/status.h"

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

// How every subcommand ends: the documented exit codes and the one way an error is printed. Used by
// all files of tools/cli; no state.

// Exit codes of `slimwire`. `run` otherwise returns the command's own code.
inline constexpr int kSuccess = 0;
inline constexpr int kCheckFailed = 1;    // wrong policy, failed benchmark, fault that doctor found
inline constexpr int kUsage = 2;          // arguments that cannot be
inline constexpr int kCannotStart = 125;  // run: slimwire itself failed before the command started
inline constexpr int kNotExecutable = 126;  // run: the command exists and cannot be executed
inline constexpr int kNotFound = 127;       // run: no such command
inline constexpr int kSignalBase = 128;     // 128 + signal number of a command that a signal ended

inline constexpr char kExitCodeHelp[] =
    "Exit codes: 0 success; 1 a check failed; 2 wrong arguments; run: the command's own code (of "
    "the first failing rank), 128+N when signal N ended it, 125 slimwire could not start it, 126 "
    "not executable, 127 not found.";

// Prints "slimwire: error: <text>" as one line on stderr and returns `exit_code`.
int fail(int exit_code, std::string_view text);
inline int fail(int exit_code, const Status& status) {
    return fail(exit_code, status.message());
}

// In functions that return an exit code, as SLIMWIRE_TRY in those that return a Status: what is an
// error ends the function by fail().
#define SLIMWIRE_OR_FAIL(exit_code, expression)                   \
    do {                                                          \
        const ::slimwire::Status slimwire_status_ = (expression); \
        if (!slimwire_status_.ok()) {                             \
            return fail(exit_code, slimwire_status_);             \
        }                                                         \
    } while (false)
#define SLIMWIRE_OR_FAIL_ASSIGN(exit_code, declaration, expression)                            \
    SLIMWIRE_OR_FAIL_IMPL(SLIMWIRE_CONCAT(slimwire_result_, __LINE__), exit_code, declaration, \
                          expression)
#define SLIMWIRE_OR_FAIL_IMPL(name, exit_code, declaration, expression) \
    auto name = (expression);                                           \
    if (!name.ok()) {                                                   \
        return fail(exit_code, name.status());                          \
    }                                                                   \
    declaration = std::move(name).value()

// Of an argument that cannot be.
[[nodiscard]] inline Status invalid(std::string text) {
    return {Code::kInvalidArgument, std::move(text)};
}

// Says that standard output failed by errno `error`; returns `code`, or a failure where that is
// success.
int output_lost(int code, int error);

// "slimwire: <text>" on stderr.
void note(std::string_view text);
void note_all(const std::vector<std::string>& texts);

}  // namespace slimwire::cli
