#include "tools/cli/run/hook.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <system_error>

#include "collectives/call/hash.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/subprocess.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

Status check_library(const fs::path& library, const char* what, const char* flag) {
    const std::string text = library.string();
    if (text.empty()) {
        return {Code::kNotFound,
                fmt::format("{} is not there: build it (ninja -C build) or name it "
                            "with {}",
                            what, flag)};
    }
    SLIMWIRE_TRY_ASSIGN(const ElfFile elf, read_elf(library));
    if (!same_architecture(elf)) {
        return invalid(fmt::format("{} is for {}, this machine needs another build", text,
                                   architecture_name(elf.elf_class, elf.machine)));
    }
    return {};
}

// A sanitizer build of the library wants its runtime before everything else.
void preload_sanitizer(const fs::path& library, Environment* environment) {
    const Result<ElfFile> elf = read_elf(library);
    if (!elf.ok()) {
        return;
    }
    const Result<LoadPlan> plan = list_libraries(elf.value(), *environment);
    for (const char* name : {"libasan.so", "libtsan.so"}) {
        const LoadedObject* runtime = plan.ok() ? plan.value().find(name) : nullptr;
        if (runtime != nullptr && !runtime->path.empty()) {
            environment->prepend_preload(runtime->path.string());
        }
    }
}

// Under LD_AUDIT the loader reserves the space of static thread-local data before it knows the
// program's libraries; those that need more would not load. What the user gave is kept where the
// program's libraries fit in; of ours at least half is for libraries that are opened later.
void reserve_static_tls(uint64_t needed, Environment* environment) {
    constexpr uint64_t kLeast = 16384;
    constexpr std::string_view kName = "glibc.rtld.optional_static_tls=";
    std::string tunables;
    for (const std::string& item : split_list(environment->text("GLIBC_TUNABLES"), ":")) {
        if (item.starts_with(kName)) {
            if (std::strtoull(item.c_str() + kName.size(), nullptr, 0) >= needed) {
                return;
            }
            continue;
        }
        tunables += item + ':';
    }
    environment->set("GLIBC_TUNABLES",
                     fmt::format("{}{}{}", tunables, kName, (needed / (kLeast / 2) + 1) * kLeast));
}

constexpr const char* kWhole = "an installation that has it";

}  // namespace

Status check_list_item(const fs::path& item, const char* variable, const char* separators) {
    const std::string text = item.string();
    if (const size_t at = text.find_first_of(separators); at != std::string::npos) {
        return invalid(fmt::format("{}: the loader splits {} at '{}'; accepted: a path without it",
                                   text, variable, text[at]));
    }
    for (const std::string name : {"ORIGIN", "LIB", "PLATFORM"}) {
        for (const std::string& token : {"$" + name, "${" + name + "}"}) {
            if (variable != std::string_view("LD_AUDIT") && text.find(token) != std::string::npos) {
                return invalid(
                    fmt::format("{}: the loader replaces {} in {}; accepted: a path without it",
                                text, token, variable));
            }
        }
    }
    return {};
}

const char* hook_name(Hook hook) noexcept {
    constexpr const char* kNames[] = {"auto", "preload", "dropin", "audit"};
    return kNames[static_cast<size_t>(hook)];
}

Result<Hook> parse_hook(const std::string& name) {
    if (name == hook_name(Hook::kAuto)) {
        return Hook::kAuto;
    }
    std::string accepted = hook_name(Hook::kAuto);
    for (const Hook hook : kHooks) {
        if (name == hook_name(hook)) {
            return hook;
        }
        accepted += std::string(", ") + hook_name(hook);
    }
    return invalid(fmt::format("--hook '{}': accepted: {}", name, accepted));
}

Status put_hook(Hook hook,
                const fs::path& library,
                const Installation& installation,
                uint64_t static_tls_bytes,
                Environment* environment) {
    const fs::path dropin =
        installation.dropin.empty() ? fs::path() : installation.dropin / "libnccl.so.2";
    switch (hook) {
        case Hook::kAuto:
            return invalid("--hook auto was not chosen from");
        case Hook::kPreload:
            break;
        case Hook::kDropin:
            return check_library(dropin, "the drop-in libnccl.so.2", kWhole);
        case Hook::kAudit:
            SLIMWIRE_TRY(check_library(installation.audit, "libslimwire-audit.so", kWhole));
            SLIMWIRE_TRY(check_library(dropin, "the drop-in libnccl.so.2", kWhole));
            SLIMWIRE_TRY(check_list_item(installation.audit, "LD_AUDIT", ":"));
            environment->prepend("LD_AUDIT", installation.audit.string());
            reserve_static_tls(static_tls_bytes, environment);
            preload_sanitizer(dropin, environment);
            return {};
    }
    SLIMWIRE_TRY(check_library(library, "libslimwire.so", "--library"));
    SLIMWIRE_TRY(check_list_item(library, "LD_PRELOAD", ": "));
    environment->prepend_preload(library.string());
    preload_sanitizer(library, environment);
    return {};
}

void take_hooks_out(Environment* environment) {
    const std::pair<const char*, const char*> lists[] = {{"LD_PRELOAD", "libslimwire.so"},
                                                         {"LD_AUDIT", "libslimwire-audit.so"}};
    for (const auto& [variable, name] : lists) {
        environment->edit(variable, ": ", [&, name = name](const std::string& item) {
            return fs::path(item).filename() == name ? std::string() : item;
        });
    }
    environment->edit("LD_LIBRARY_PATH", ":;", [](const std::string& item) {
        std::error_code error;
        const fs::path real = fs::canonical(fs::path(item) / "libnccl-real.so", error);
        return error ? item : real.parent_path().string();
    });
}

namespace {

// Before it LD_AUDIT binds every function at once and has faults in namespaces.
constexpr int kFirstMinor = 35;
constexpr double kAskSeconds = 60;

// The program whose loader is asked; ourselves where that is a script or static: what it starts
// asks for the library by name.
Result<ElfFile> asked_program(const fs::path& program, const Installation& installation) {
    Result<ElfFile> elf = read_elf(program);
    return elf.ok() && !elf.value().interpreter.empty() ? std::move(elf)
                                                        : read_elf(installation.executable);
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
        run_captured({loader, "--version"}, environment, kAskSeconds, true);
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
    for (const std::string& item : split_list(environment.text("LD_PRELOAD"), ": ")) {
        if (fs::path(item).filename().string().starts_with("libslimwire.so")) {
            return {Hook::kPreload, fmt::format("LD_PRELOAD holds {} already", item)};
        }
    }
    if (!library.empty()) {
        return {Hook::kPreload, fmt::format("--library names {}", library.string())};
    }
    const Result<fs::path> found = find_command(command[0], environment);
    const Result<ElfFile> program =
        asked_program(found.ok() ? found.value() : fs::path(), installation);
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

namespace {

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
    if (const Result<ElfFile> elf = asked_program(program, find_installation()); elf.ok()) {
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
        return invalid("--dropin keeps a folder of links: set XDG_CACHE_HOME or HOME");
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
