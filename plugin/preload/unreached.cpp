// Under LD_PRELOAD alone nobody sees that a program opens NCCL itself and passes slimwire by. A
// rank's process that asked for slimwire, has NCCL and never called slimwire says so at its end.
// `slimwire run` says it better (tools/cli/run/run_command.cpp), so its jobs are left to it. In any
// other process this costs a look at the environment. In libslimwire.so alone: what loads the
// drop-in is reached, and finds paths that `slimwire run` made absolute.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "collectives/call/launcher.h"
#include "collectives/communicator/process.h"

namespace slimwire::preload {
namespace {

bool given(const char* name) {
    const char* value = process_getenv(name);
    return value != nullptr && *value != '\0';
}

// What is in front of the program's start: it may be in another folder at its first call of NCCL,
// when paths are read.
[[gnu::constructor]] void keep_folder() {
    for (const auto& [name, path] : absolute_paths(process_getenv)) {
        (void)::setenv(name, path.c_str(), 1);
    }
}

// A file of /proc of that process.
std::string of_process(pid_t process, const char* name) {
    std::ifstream file("/proc/" + std::to_string(process) + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
}

bool has_nccl(pid_t process) {
    return of_process(process, "maps").find("libnccl.so") != std::string::npos;
}

// Whether a rank started this process for its own ends (loading data, compiling): the parent, too,
// has NCCL and that rank.
bool helps_a_rank(const std::string& rank_variable) {
    const std::string line = rank_variable + '=' + process_getenv(rank_variable.c_str());
    const std::string environment = '\0' + of_process(::getppid(), "environ");
    return environment.find('\0' + line + '\0') != std::string::npos && has_nccl(::getppid());
}

[[gnu::destructor]] void say_unreached() {
    if (Runtime::peek() != nullptr || !(given("SLIMWIRE_CODEC") || given("SLIMWIRE_POLICY")) ||
        given(kRunSocketVariable)) {
        return;
    }
    static const char* rank_variable;  // the last that was looked at
    const std::optional<int> rank = launcher_rank([](const char* name) {
        rank_variable = name;
        return process_getenv(name);
    });
    if (rank != 0 || !has_nccl(::getpid()) || helps_a_rank(rank_variable)) {
        return;
    }
    const Result<Config> config = load_config(process_getenv);
    if (!config.ok() || !config.value().active) {
        return;
    }
    log_configure(config.value().settings.log_level, config.value().settings.log_file);
    log_line(LogLevel::kWarn,
             "rank 0: NCCL is loaded, but no call of it came through LD_PRELOAD, so nothing was "
             "compressed; `slimwire run`, or LD_AUDIT=libslimwire-audit.so in place of "
             "LD_PRELOAD, reaches programs that open NCCL themselves");
}

}  // namespace
}  // namespace slimwire::preload
