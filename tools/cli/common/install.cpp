#include "tools/cli/common/install.h"

#include <initializer_list>
#include <system_error>

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

// The first of `candidates` (relative to `base`) that holds `file`, or is it when `file` is empty.
fs::path first_with(const fs::path& base,
                    std::initializer_list<const char*> candidates,
                    const char* file) {
    for (const char* candidate : candidates) {
        const fs::path folder = (base / candidate).lexically_normal();
        std::error_code error;
        if (fs::exists(*file != '\0' ? folder / file : folder, error)) {
            return folder;
        }
    }
    return {};
}

// A library of ours in its folder of the build tree or in an installation's; empty: not there.
fs::path installed_library(const fs::path& bin, const char* build_folder, const char* name) {
    const fs::path folder = first_with(
        bin,
        {build_folder, "../lib", "../lib/x86_64-linux-gnu", "../lib/aarch64-linux-gnu", "../lib64"},
        name);
    return folder.empty() ? fs::path() : folder / name;
}

}  // namespace

Installation find_installation(const fs::path& executable) {
    Installation found;
    found.executable = executable;
    const fs::path bin = executable.parent_path();
    found.library = installed_library(bin, "../plugin", "libslimwire.so");
    found.audit = installed_library(bin, "../plugin", "libslimwire-audit.so");
    found.net_plugin = installed_library(bin, "../plugin/net", "libnccl-net-slimwire.so");
    found.dropin = first_with(
        bin,
        {"../plugin/dropin", "../lib/slimwire/dropin", "../lib/x86_64-linux-gnu/slimwire/dropin",
         "../lib/aarch64-linux-gnu/slimwire/dropin", "../lib64/slimwire/dropin"},
        "libnccl.so.2");
    found.emulator = first_with(bin, {"emulator", "../lib/slimwire/emulator"}, "libnccl.so.2");
    found.helpers = first_with(bin, {".", "../libexec/slimwire"}, "slimwire-bench-worker");
    found.stub_nccl =
        first_with(bin, {"cli/stub_nccl", "../lib/slimwire/stub_nccl"}, "libnccl.so.2");
    return found;
}

Installation find_installation() {
    std::error_code error;
    fs::path self = fs::read_symlink("/proc/self/exe", error);
    return find_installation(error ? fs::path("slimwire") : self);
}

}  // namespace slimwire::cli
