#include "tools/cli/run/dropin.h"

#include <fmt/core.h>
#include <unistd.h>

#include <system_error>

#include "collectives/call/hash.h"
#include "tools/cli/run/hook.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

// A link at `link` to `target`, replaced in one step so that jobs that start together never see
// none.
Status make_link(const fs::path& target, const fs::path& link) {
    std::error_code error;
    if (fs::read_symlink(link, error) == target) {
        return {};
    }
    const fs::path fresh = link.string() + fmt::format(".{}", ::getpid());
    fs::remove(fresh, error);
    fs::create_symlink(target, fresh, error);
    if (!error) {
        fs::rename(fresh, link, error);
    }
    return error ? Status(Code::kSystemError, fmt::format("cannot make the link {}: {}; set "
                                                          "XDG_CACHE_HOME to a writable folder",
                                                          link.string(), error.message()))
                 : Status();
}

}  // namespace

Result<fs::path> find_nccl_of(const fs::path& program, const Environment& environment) {
    if (const std::string named = environment.text("SLIMWIRE_NCCL_LIBRARY"); !named.empty()) {
        return fs::path(named);
    }
    // Scripts are as good as any program here: what they start asks for the library by name.
    Result<ElfFile> elf = read_elf(program);
    if (!elf.ok() || elf.value().interpreter.empty()) {
        elf = read_elf(find_installation().executable);
    }
    if (elf.ok()) {
        SLIMWIRE_TRY_ASSIGN(const LoadPlan plan,
                            list_libraries(elf.value(), environment, "libnccl.so.2"));
        const LoadedObject* found = plan.find("libnccl.so");
        if (found != nullptr && !found->path.empty()) {
            return found->path;
        }
    }
    return Status(Code::kNotFound,
                  "--dropin: no libnccl.so.2 found to stand in front of; name the real "
                  "one with SLIMWIRE_NCCL_LIBRARY");
}

Status put_dropin_first(const Installation& installation,
                        const fs::path& real_nccl,
                        Environment* environment) {
    const fs::path cache = environment->text("XDG_CACHE_HOME");
    const fs::path home = environment->text("HOME");
    if (cache.empty() && home.empty()) {
        return {Code::kInvalidArgument,
                "--dropin keeps a folder of links: set XDG_CACHE_HOME or HOME"};
    }
    std::error_code error;
    const fs::path ours = fs::canonical(installation.dropin / "libnccl.so.2", error);
    const fs::path real = fs::canonical(real_nccl, error);
    if (error || ours == real) {
        return {Code::kNotFound,
                fmt::format("--dropin: {} is not a real NCCL; name it with SLIMWIRE_NCCL_LIBRARY",
                            real_nccl.string())};
    }
    const fs::path folder =
        (cache.empty() ? home / ".cache" : cache) / "slimwire" /
        fmt::format("dropin-{:016x}", stable_hash(ours.string() + '\n' + real.string()));
    fs::create_directories(folder, error);
    if (error) {
        return {Code::kSystemError,
                fmt::format("--dropin: cannot make {}: {}; set XDG_CACHE_HOME to a "
                            "writable folder",
                            folder.string(), error.message())};
    }
    SLIMWIRE_TRY(check_list_item(folder, "LD_LIBRARY_PATH", ":;"));
    SLIMWIRE_TRY(make_link(ours, folder / "libnccl.so.2"));
    SLIMWIRE_TRY(make_link(real, folder / "libnccl-real.so"));
    environment->prepend("LD_LIBRARY_PATH", folder.string());
    return {};
}

}  // namespace slimwire::cli
