#include "tools/cli/run/hook.h"

#include <fmt/core.h>

#include <cstdlib>

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
        return {Code::kInvalidArgument,
                fmt::format("{} is for {}, this machine needs another build", text,
                            architecture_name(elf.elf_class, elf.machine))};
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
        return {Code::kInvalidArgument,
                fmt::format("{}: the loader splits {} at '{}'; accepted: a path without it", text,
                            variable, text[at])};
    }
    for (const std::string name : {"ORIGIN", "LIB", "PLATFORM"}) {
        for (const std::string& token : {"$" + name, "${" + name + "}"}) {
            if (variable != std::string_view("LD_AUDIT") && text.find(token) != std::string::npos) {
                return {Code::kInvalidArgument,
                        fmt::format("{}: the loader replaces {} in {}; accepted: a path without it",
                                    text, token, variable)};
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
    return Status(Code::kInvalidArgument, fmt::format("--hook '{}': accepted: {}", name, accepted));
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
            return {Code::kInvalidArgument, "--hook auto was not chosen from"};
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

}  // namespace slimwire::cli
