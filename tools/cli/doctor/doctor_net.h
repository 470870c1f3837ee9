// What `slimwire doctor` finds out about the net plugin (plugin/net): whether NCCL would find and
// take it, whether its settings are accepted, and whether it starts. Libraries are opened in child
// processes, as NCCL opens them; the plugin's network devices are asked for, no connection is made.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/cli/common/environment.h"

namespace slimwire::cli {

struct Diagnosis;

struct NetVariable {
    std::string name, value;
    std::string error;  // empty: accepted
};

struct NetDiagnosis {
    std::string library;      // the one beside this program; empty: missing
    std::string asked;        // NCCL_NET_PLUGIN; empty: not set
    std::string path;         // the slimwire that NCCL_NET_PLUGIN leads to; empty: none
    std::vector<int> tables;  // versions that `path`, else `library` exports, ascending
    std::vector<int> tuners;  // the same of its tuner's tables
    int table = 0;            // the one that the command's NCCL takes; 0: unknown, or none
    std::vector<NetVariable> variables;  // SLIMWIRE_NET_* that are set
    bool started = false;                // `path` gave devices
    std::vector<std::string> devices;    // as it names them
};

// Newest table version that an NCCL takes, by its version text; 0: none of ours, or not known.
[[nodiscard]] int newest_net_table(const std::string& nccl_version) noexcept;

// Fills diagnosis->net and adds findings; the command's libraries must be known.
void examine_net(const std::filesystem::path& library,
                 const Environment& environment,
                 Diagnosis* diagnosis);

}  // namespace slimwire::cli
