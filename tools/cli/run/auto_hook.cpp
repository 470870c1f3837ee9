#include "tools/cli/run/auto_hook.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <system_error>

#include "tools/cli/common/subprocess.h"
#include "tools/cli/common/temporary_folder.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

// Before it LD_AUDIT binds every function at once and has faults in namespaces.
constexpr int kFirstMinor = 35;
constexpr double kLoaderSeconds = 60;

// The item of a list of libraries whose file name begins so; empty: none.
std::string listed(const std::string& list, std::initializer_list<const char*> names) {
    for (const std::string& item : split_list(list, ": ")) {
        for (const char* name : names) {
            if (fs::path(item).filename().string().starts_with(name)) {
                return item;
            }
        }
    }
    return {};
}

// The program whose loader is asked: the command's, or ourselves where that is a script or static.
Result<ElfFile> asked_program(const std::string& command,
                              const Environment& environment,
                              const Installation& installation) {
    const Result<fs::path> program = find_command(command, environment);
    if (program.ok()) {
        Result<ElfFile> elf = read_elf(program.value());
        if (elf.ok() && !elf.value().interpreter.empty()) {
            return elf;
        }
    }
    return read_elf(installation.executable);
}

// The first library of a sanitizer: its runtime calls the loader in everyone's place, and the audit
// helper cannot see who asks.
std::string find_sanitizer(const LoadPlan& plan) {
    for (const char* name : {"libasan.so", "libtsan.so", "libhwasan.so"}) {
        if (const LoadedObject* found = plan.find(name); found != nullptr) {
            return found->name;
        }
    }
    // Linked in statically: the name of a symbol. Our own file does not have it between two zeros.
    std::string symbol = "?__asan_init?";
    symbol.front() = symbol.back() = '\0';
    return file_contains(plan.program, symbol) ? "AddressSanitizer" : "";
}

// "ld.so (Debian GLIBC 2.36-9) stable release version 2.36." From glibc 2.33 on loaders say it.
int glibc_minor(const std::string& loader, const Environment& environment) {
    const Result<Captured> said =
        run_captured({loader, "--version"}, environment, kLoaderSeconds, true);
    constexpr std::string_view kBefore = "release version 2.";
    const size_t at = said.ok() ? said.value().output.find(kBefore) : std::string::npos;
    int minor = 0;
    if (at != std::string::npos) {
        const std::string& text = said.value().output;
        std::from_chars(text.data() + at + kBefore.size(), text.data() + text.size(), minor);
    }
    return minor;
}

// Why LD_AUDIT is not for this command; empty: it is.
Result<std::string> objection(const ElfFile& program,
                              Environment environment,
                              const Installation& installation) {
    SLIMWIRE_TRY(put_hook(Hook::kAudit, {}, installation, 0, &environment));
    SLIMWIRE_TRY_ASSIGN(const ElfFile dropin, read_elf(installation.dropin / "libnccl.so.2"));
    SLIMWIRE_TRY_ASSIGN(const LoadPlan needed, list_libraries(dropin, environment));
    if (const std::string sanitizer = find_sanitizer(needed); !sanitizer.empty()) {
        return fmt::format("slimwire is built with a sanitizer ({})", sanitizer);
    }
    if (const int minor = glibc_minor(program.interpreter, environment); minor < kFirstMinor) {
        return fmt::format("{} is not of glibc 2.{} or later", program.interpreter, kFirstMinor);
    }
    // Any library under NCCL's name: is it the drop-in when the loader has mapped it?
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    const fs::path probe = folder.path() / "libnccl.so.2";
    std::error_code error;
    fs::create_symlink(installation.audit, probe, error);
    SLIMWIRE_TRY_ASSIGN(const LoadPlan plan,
                        list_libraries(program, environment, probe.string(), true));
    if (const std::string sanitizer = find_sanitizer(plan); !sanitizer.empty()) {
        return fmt::format("{} is built with a sanitizer ({})", program.path.string(), sanitizer);
    }
    const bool redirected =
        std::any_of(plan.objects.begin(), plan.objects.end(), [&](const LoadedObject& object) {
            std::error_code ignored;
            return fs::equivalent(object.path, dropin.path, ignored);
        });
    std::error_code ignored;
    const std::string named = environment.text("SLIMWIRE_NCCL_LIBRARY");
    return redirected ? std::string()
           : !named.empty() && !fs::exists(named, ignored)
               ? fmt::format("SLIMWIRE_NCCL_LIBRARY: {} is not there", named)
               : fmt::format("{} does not ask LD_AUDIT for NCCL's file", program.interpreter);
}

}  // namespace

HookChoice choose_hook(const std::vector<std::string>& command,
                       const Environment& environment,
                       const Installation& installation,
                       const fs::path& library) {
    const std::string auditors = environment.text("LD_AUDIT");
    if (!auditors.empty() && auditors != installation.audit.string()) {
        return {Hook::kPreload, fmt::format("LD_AUDIT holds {} already", auditors)};
    }
    const std::string preloads = environment.text("LD_PRELOAD");
    if (const std::string ours = listed(preloads, {"libslimwire.so"}); !ours.empty()) {
        return {Hook::kPreload, fmt::format("LD_PRELOAD holds {} already", ours)};
    }
    if (!library.empty()) {
        return {Hook::kPreload, fmt::format("--library names {}", library.string())};
    }
    const Result<ElfFile> program = asked_program(command[0], environment, installation);
    const Result<std::string> why =
        program.ok() ? objection(program.value(), environment, installation) : program.status();
    if (!why.ok() || !why.value().empty()) {
        return {Hook::kPreload, why.ok() ? why.value() : why.status().message()};
    }
    return {Hook::kAudit, "it reaches every program that loads NCCL"};
}

uint64_t static_tls_bytes(const std::vector<std::string>& command, const Environment& environment) {
    uint64_t most = 0;
    for (const std::string& word : command) {
        const Result<fs::path> program = find_command(word, environment);
        const Result<ElfFile> elf = program.ok() ? read_elf(program.value()) : program.status();
        if (!elf.ok() || elf.value().interpreter.empty()) {
            continue;
        }
        const Result<LoadPlan> plan = list_libraries(elf.value(), environment);
        uint64_t bytes = 0;
        for (const LoadedObject& object :
             plan.ok() ? plan.value().objects : std::vector<LoadedObject>()) {
            const Result<ElfFile> needed = read_elf(object.path);
            bytes += needed.ok() ? needed.value().tls_bytes : 0;
        }
        most = std::max(most, bytes);
    }
    return most;
}

}  // namespace slimwire::cli
