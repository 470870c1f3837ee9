// The ways in: what makes the loader put slimwire before a job's NCCL. Which of them reaches a
// program depends on how that binds NCCL (plugin/README.md has the table, `doctor` says it of a
// program, `run --hook` chooses).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "tools/cli/common/environment.h"

namespace slimwire::cli {

enum class Hook {
    kAuto,     // kAudit where that works, else kPreload: choose_hook()
    kPreload,  // LD_PRELOAD=libslimwire.so
    kDropin,   // the drop-in libnccl.so.2 first on LD_LIBRARY_PATH
    kAudit,    // LD_AUDIT=libslimwire-audit.so
};
// All but kAuto.
inline constexpr std::array kHooks = {Hook::kPreload, Hook::kDropin, Hook::kAudit};

// As in `--hook NAME`.
[[nodiscard]] const char* hook_name(Hook hook) noexcept;
// kInvalidArgument with the accepted names.
Result<Hook> parse_hook(const std::string& name);

// kInvalidArgument where `item` holds one of `separators`, at which the loader splits `variable`.
Status check_list_item(const std::filesystem::path& item,
                       const char* variable,
                       const char* separators);

// Checks that the libraries of `hook` are there and fit this machine, and puts them into the
// environment; `library` is libslimwire.so. LD_AUDIT gets room for `static_tls_bytes` of the
// program's libraries. The drop-in is checked only: put_dropin_first() does the rest when the real
// NCCL is known. kAuto is kInvalidArgument: choose first.
Status put_hook(Hook hook,
                const std::filesystem::path& library,
                const Installation& installation,
                uint64_t static_tls_bytes,
                Environment* environment);

// Takes every hook of slimwire out of the environment, of any installation and whoever put it
// there: libslimwire.so from LD_PRELOAD, libslimwire-audit.so from LD_AUDIT; folders of the drop-in
// give way to that of the real NCCL.
void take_hooks_out(Environment* environment);

// `--hook auto`: LD_AUDIT where it works, because it reaches every program that loads NCCL; else
// LD_PRELOAD, which does not reach programs that open NCCL themselves. The loader is asked, in the
// command's environment; nothing of the command runs.
struct HookChoice {
    Hook hook = Hook::kPreload;
    std::string reason;  // a clause: "LD_AUDIT holds /x/y.so already"
};

// What kAuto is for `command`, never kAuto itself. `environment` is the command's, without slimwire
// in it; `library` another libslimwire.so than the installed one, or empty.
[[nodiscard]] HookChoice choose_hook(const std::vector<std::string>& command,
                                     const Environment& environment,
                                     const Installation& installation,
                                     const std::filesystem::path& library);

// Static thread-local data of the libraries that a program needs, in bytes; of the programs that
// the command's words name (env, mpirun, timeout start others) the one with most. LD_AUDIT makes
// the loader take it out of glibc.rtld.optional_static_tls.
[[nodiscard]] uint64_t static_tls_bytes(const std::vector<std::string>& command,
                                        const Environment& environment);

// The drop-in way in: a folder with two links, libnccl.so.2 to slimwire's drop-in and
// libnccl-real.so to the real NCCL, put first on LD_LIBRARY_PATH. It reaches programs that open
// libnccl.so.2 by name at run time, which a preload does not.

// The NCCL that the program would load or open: SLIMWIRE_NCCL_LIBRARY, else what the loader finds.
Result<std::filesystem::path> find_nccl_of(const std::filesystem::path& program,
                                           const Environment& environment);

// Makes the folder for this pair of libraries (it stays, under XDG_CACHE_HOME or ~/.cache, because
// the command replaces this process) and puts it first on LD_LIBRARY_PATH.
Status put_dropin_first(const Installation& installation,
                        const std::filesystem::path& real_nccl,
                        Environment* environment);

}  // namespace slimwire::cli
