// Short-lived children whose answer is wanted and whose failure must not become ours: a library
// that is opened to ask its version, an interpreter that is asked for its search path, a benchmark
// worker.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "tools/cli/common/environment.h"

namespace slimwire::cli {

struct Captured {
    int exit_code = 0;   // 128 + signal when a signal ended it
    std::string output;  // stdout
};

// Runs `command` (searched in PATH) with nothing on stdin and collects its stdout; stderr is ours,
// or nothing with `quiet`. After `timeout_seconds` it is killed, with what it started: an error.
Result<Captured> run_captured(const std::vector<std::string>& command,
                              Environment environment,
                              double timeout_seconds,
                              bool quiet);

// Runs `body` in a forked child without stdout and stderr and returns its text; empty when the
// child crashed or took longer than 10 s.
[[nodiscard]] std::string ask_in_child(const std::function<std::string()>& body);

}  // namespace slimwire::cli
