// How every subcommand ends: the documented exit codes and the one way an error is printed. Used by
// all files of tools/cli; no state.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "codecs/base/status.h"

namespace slimwire::cli {

// Exit codes of `slimwire`. `run` otherwise returns the command's own code.
inline constexpr int kSuccess = 0;
inline constexpr int kCheckFailed =
    1;                            // a policy is wrong, a benchmark failed, doctor found a fault
inline constexpr int kUsage = 2;  // arguments that cannot be
inline constexpr int kCannotStart = 125;  // run: slimwire itself failed before the command started
inline constexpr int kNotExecutable = 126;  // run: the command exists and cannot be executed
inline constexpr int kNotFound = 127;       // run: no such command
inline constexpr int kSignalBase = 128;     // 128 + signal number of a command that a signal ended

inline constexpr char kExitCodeHelp[] =
    "Exit codes: 0 success; 1 a check failed; 2 wrong arguments; run: the command's own code (of "
    "the "
    "first failing rank), 128+N when signal N ended it, 125 slimwire could not start it, 126 not "
    "executable, 127 not found.";

// Prints "slimwire: error: <text>" as one line on stderr and returns `exit_code`.
int fail(int exit_code, std::string_view text);
inline int fail(int exit_code, const Status& status) {
    return fail(exit_code, status.message());
}

// Of an argument that cannot be.
[[nodiscard]] inline Status invalid(std::string text) {
    return {Code::kInvalidArgument, std::move(text)};
}

// Says that standard output failed by errno `error`; returns `code`, or a failure where that is
// success.
int output_lost(int code, int error);

// "slimwire: <text>" on stderr.
void note(std::string_view text);

}  // namespace slimwire::cli
