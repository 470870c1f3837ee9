// The ways in: what makes the loader put slimwire before a job's NCCL. Which of them reaches a
// program depends on how that binds NCCL (plugin/README.md has the table, `doctor` says it of a
// program, `run --hook` chooses).
#pragma once

#include <array>
#include <string>

#include "tools/cli/common/environment.h"
#include "tools/cli/common/install.h"

namespace slimwire::cli {

enum class Hook {
    kAuto,     // kAudit where that works, else kPreload (auto_hook.h)
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
// program's libraries (auto_hook.h). The drop-in is checked only: it goes in when the real NCCL is
// known (dropin.h). kAuto is kInvalidArgument: choose first.
Status put_hook(Hook hook,
                const std::filesystem::path& library,
                const Installation& installation,
                uint64_t static_tls_bytes,
                Environment* environment);

// Takes every hook of slimwire out of the environment, of any installation and whoever put it
// there: libslimwire.so from LD_PRELOAD, libslimwire-audit.so from LD_AUDIT; folders of the drop-in
// give way to that of the real NCCL.
void take_hooks_out(Environment* environment);

}  // namespace slimwire::cli
