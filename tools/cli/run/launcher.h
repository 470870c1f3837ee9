// Starts the ranks of an emulated job as processes of this machine and stays until they ended:
// prefixes their output, passes signals on, and ends the rest when one fails. One thread, one poll
// loop; used by `slimwire run --emulate` and `slimwire bench collective`.
//
// Each rank leads its own process group, so that a Ctrl-C at the terminal reaches slimwire only,
// which passes it on once; what a rank leaves behind in its group is killed when the job ends.
// A slimwire that is itself killed with SIGKILL takes its ranks along, not what they started.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/common/environment.h"

namespace slimwire::cli {

struct LaunchOptions {
    std::vector<std::string> command;       // not empty; searched in PATH
    std::vector<Environment> environments;  // one per rank
    bool prefix = true;                     // "[rank] " in front of each line
    // How long the others may take to end by themselves after one rank failed, then SIGTERM, and
    // after `kill_seconds` SIGKILL.
    double grace_seconds = 30;
    double kill_seconds = 5;
};

// Exit code of the job: 0, or that of the rank that failed first (128 + signal), named on stderr;
// 125, 126, 127 when the command could not be started.
[[nodiscard]] int launch_ranks(LaunchOptions options);

}  // namespace slimwire::cli
