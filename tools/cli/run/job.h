// A job as the command line describes it: which policy, which ranks on which emulated link, which
// command. Turned into checked environments here and started by run_command.cpp and
// bench_collective.cpp.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/policy/config.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/run/hook.h"

namespace CLI {
class App;
}

namespace slimwire::cli {

struct JobOptions {
    // What slimwire does: each sets the variable of the same name and wins over the environment.
    std::string policy;          // SLIMWIRE_POLICY
    std::string codec;           // SLIMWIRE_CODEC
    std::string error_feedback;  // SLIMWIRE_EF
    std::string min_bytes;       // SLIMWIRE_MIN_BYTES
    std::string calibration;     // SLIMWIRE_CALIBRATION
    std::string report;          // SLIMWIRE_REPORT
    std::string mode;            // SLIMWIRE_MODE
    std::string log;             // SLIMWIRE_LOG
    // How it gets in.
    std::string library;  // other libslimwire.so than the installed one
    Hook hook = Hook::kPreload;
    bool hook_chosen = false;       // by --hook or --dropin
    uint64_t static_tls_bytes = 0;  // of the command, for LD_AUDIT (hook.h)
    bool native = false;            // not at all
    // The emulated job; 0 ranks: the command runs as it is.
    int ranks = 0;
    std::string nodes;  // "2x4"
    std::string link;   // "1gbit", "1gbit,50us"
    int port = 0;       // MASTER_PORT; 0: any free one
};

// Nodes times ranks of a node, from "2x4".
struct NodeShape {
    int nodes = 0;
    int ranks_per_node = 0;
};
inline constexpr int kMostEmulatedRanks = 1024;
// At most `most` ranks. `name`: of the option or variable, for errors.
Result<NodeShape> parse_nodes(const std::string& text,
                              const char* name = "--nodes",
                              int most = kMostEmulatedRanks);

// Bits a second and latency of "1gbit" or "1gbit,50us".
struct LinkSpec {
    double bits_per_second = 0;
    double latency_us = 0;
};
Result<LinkSpec> parse_link(const std::string& text, const char* name = "--link");

// Options of slimwire's behaviour (--policy ... --log), of the way in, and of the emulated job.
void add_policy_options(CLI::App& app, JobOptions* options);
void add_emulator_options(CLI::App& app, JobOptions* options);

// This process's environment without the settings that a benchmark makes itself.
Environment environment_to_measure_in();

// The environment of the command, every value checked: what is wrong with a policy, codec, link or
// report path is said here, before anything starts. `base` is usually Environment::current(). The
// drop-in is checked only; it goes in when the real NCCL is known (hook.h).
Result<Environment> make_job_environment(const JobOptions& options,
                                         const Installation& installation,
                                         Environment base);
// What slimwire makes of the environment's variables and the policy that they name.
Result<Config> configuration_of(const Environment& environment);
// One environment per rank for an emulated job (options.ranks > 0).
Result<std::vector<Environment>> make_rank_environments(const JobOptions& options,
                                                        const Installation& installation,
                                                        const Environment& job);

}  // namespace slimwire::cli
