// Where the parts of this slimwire lie, seen from the running executable: beside it in a build tree
// (build/tools/slimwire), or under one prefix in an installation (bin, lib). Nothing is searched
// elsewhere, so a command never mixes two versions.
#pragma once

#include <filesystem>
#include <string>

#include "codecs/base/status.h"

namespace slimwire::cli {

struct Installation {
    std::filesystem::path executable;  // this program, symbolic links resolved
    std::filesystem::path library;     // libslimwire.so
    std::filesystem::path audit;       // libslimwire-audit.so
    std::filesystem::path net_plugin;  // libnccl-net-slimwire.so
    std::filesystem::path dropin;      // folder of the drop-in libnccl.so.2
    std::filesystem::path emulator;    // folder of the emulator's libnccl.so.2 and libcudart.so.13
    std::filesystem::path helpers;     // folder of slimwire-bench-worker and its companions
    std::filesystem::path stub_nccl;   // folder of the stub libnccl.so.2 of `bench overhead`
};

// Never fails: a part that is not there has an empty path, and who needs it says so.
[[nodiscard]] Installation find_installation();
// As above for an executable at `executable` (tests).
[[nodiscard]] Installation find_installation(const std::filesystem::path& executable);

}  // namespace slimwire::cli
