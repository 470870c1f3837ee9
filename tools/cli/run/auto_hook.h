// `--hook auto`: LD_AUDIT where it works, because it reaches every program that loads NCCL; else
// LD_PRELOAD, which does not reach programs that open NCCL themselves. The loader is asked, in the
// command's environment (loader_search.h); nothing of the command runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/cli/common/environment.h"
#include "tools/cli/common/install.h"
#include "tools/cli/run/hook.h"

namespace slimwire::cli {

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

}  // namespace slimwire::cli
