// What `slimwire doctor` finds out: which libnccl and libcudart a command would load, through which
// hook slimwire reaches it, whether the net plugin would be taken, which versions are about, and
// what is missing. Asks the loader and libraries in child processes, in the command's environment;
// nothing of the job runs.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/cli/common/environment.h"
#include "tools/cli/run/hook.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli {

struct Diagnosis;

struct NetVariable {
    std::string name, value;
    std::string error;  // empty: accepted
};

// Of the net plugin (plugin/net): whether NCCL would find and take it, whether its settings are
// accepted, and whether it starts. Its library is opened as NCCL opens it; its network devices are
// asked for, no connection is made.
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

enum class Severity { kNote, kWarning, kError };
[[nodiscard]] const char* severity_name(Severity severity) noexcept;

struct Finding {
    Severity severity;
    std::string text;  // one line: what, and what to do
};

// A library that matters, wherever it was found.
struct FoundLibrary {
    std::string name;      // "libnccl.so.2"
    std::string path;      // empty: not found
    std::string found_by;  // as in LoadedObject
    std::string wanted_by;
    std::string version;  // empty: it did not say
};

// How slimwire gets in front of NCCL in this command.
enum class Verdict {
    kUnknown,      // it cannot be seen from the files
    kPreload,      // LD_PRELOAD suffices
    kAudit,        // not: the program opens NCCL at run time; LD_AUDIT does, and others may
    kUnreachable,  // NCCL is linked in statically, or nothing can be loaded into the program
    kNoNccl,       // the program does not use NCCL as far as its files say
};
[[nodiscard]] const char* verdict_name(Verdict verdict) noexcept;

// Whether one hook reaches this command's NCCL.
enum class Reach {
    kUnknown,
    kNo,
    kByName,  // if the program opens libnccl.so.2 by that name, not by a path
    kYes,
};
[[nodiscard]] const char* reach_name(Reach reach) noexcept;
using HookReach = std::array<Reach, kHooks.size()>;  // in the order of kHooks

struct Diagnosis {
    // The installation.
    std::string library, emulator;            // paths, empty when missing
    std::string ucx_version, driver_version;  // empty when missing
    // The command, when one was given.
    std::vector<std::string> command;
    std::string program;             // the ELF file that would run
    std::vector<std::string> chain;  // scripts and interpreters on the way to it
    // "program", "library", "python", "shell script", "launcher", "static program"
    std::string kind;
    Verdict verdict = Verdict::kUnknown;
    std::string hook_reason;
    std::string binding;  // how the command binds NCCL; empty: not seen
    HookReach reach{};
    std::vector<FoundLibrary> libraries;
    NetDiagnosis net;
    std::vector<Finding> findings;
    std::vector<std::string> advice;  // how to pass slimwire on, one command a line

    void add(Severity severity, std::string text) {
        findings.push_back({severity, std::move(text)});
    }
    [[nodiscard]] bool has_error() const;
};

// `environment` is that of the command, without slimwire in it.
[[nodiscard]] Diagnosis diagnose(const std::vector<std::string>& command,
                                 const Environment& environment,
                                 const Installation& installation);

// --- Parts, used by diagnose().

// Examines the extension modules that `interpreter` would import for NCCL, by their paths, and the
// scripts that the command names for libnccl's name.
void examine_python(const std::filesystem::path& interpreter,
                    const Environment& environment,
                    Diagnosis* diagnosis);
// Adds libnccl and libcudart that the loader maps for `file`, decides which hooks reach NCCL, and
// names what is missing.
void examine_libraries(const ElfFile& file, const Environment& environment, Diagnosis* diagnosis);
// NCCL is opened at run time by `opener`: notes that and what it means for each hook.
void set_opened(const std::string& opener, Diagnosis* diagnosis);
// Version as the library says, "2.28.9" or "13.0"; empty when it cannot be asked.
[[nodiscard]] std::string nccl_version(const std::filesystem::path& library);
[[nodiscard]] std::string cudart_version(const std::filesystem::path& library);

}  // namespace slimwire::cli
