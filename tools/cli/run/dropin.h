// The drop-in way in: a folder with two links, libnccl.so.2 to slimwire's drop-in and
// libnccl-real.so to the real NCCL, put first on LD_LIBRARY_PATH. It reaches programs that open
// libnccl.so.2 by name at run time, which a preload does not.
#pragma once

#include <filesystem>

#include "codecs/base/status.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/common/install.h"

namespace slimwire::cli {

// The NCCL that the program would load or open: SLIMWIRE_NCCL_LIBRARY, else what the loader finds.
Result<std::filesystem::path> find_nccl_of(const std::filesystem::path& program,
                                           const Environment& environment);

// Makes the folder for this pair of libraries (it stays, under XDG_CACHE_HOME or ~/.cache, because
// the command replaces this process) and puts it first on LD_LIBRARY_PATH.
Status put_dropin_first(const Installation& installation,
                        const std::filesystem::path& real_nccl,
                        Environment* environment);

}  // namespace slimwire::cli
