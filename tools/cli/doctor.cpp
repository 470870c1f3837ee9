#include "tools/cli/doctor.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <system_error>

#include "tools/cli/subprocess.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxInterpreters = 5;

// Calls `symbol` of `library`, which fills one int and returns 0, in a child.
std::string ask_version(const std::string& library, const char* symbol, std::string (*text)(int)) {
    return ask_in_child([&]() -> std::string {
        void* handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
        if (handle == nullptr) {
            return {};
        }
        auto* function = reinterpret_cast<int (*)(int*)>(::dlsym(handle, symbol));
        int version = 0;
        return function != nullptr && function(&version) == 0 ? text(version) : std::string();
    });
}

std::string cuda_version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string nccl_version_text(int version) {
    // 2.9 and later: 22809 is 2.28.9; before: 2804 was 2.8.4.
    return version < 10000
               ? fmt::format("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100)
               : fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::string ucx_version() {
    return ask_in_child([]() -> std::string {
        void* handle = ::dlopen("libucp.so.0", RTLD_LAZY | RTLD_LOCAL);
        auto* function =
            handle == nullptr
                ? nullptr
                : reinterpret_cast<const char* (*)()>(::dlsym(handle, "ucp_get_version_string"));
        return function != nullptr ? function() : "";
    });
}

bool starts_with_any(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](const char* word) { return text.rfind(word, 0) == 0; });
}

bool is_python(const fs::path& path) {
    return starts_with_any(path.filename().string(), {"python", "pypy"});
}

bool is_shell(const fs::path& path) {
    const std::string name = path.filename().string();
    return name == "sh" || name == "bash" || name == "dash" || name == "zsh" || name == "ksh";
}

bool is_launcher(const fs::path& path) {
    return starts_with_any(
        path.filename().string(),
        {"mpirun", "mpiexec", "orterun", "prterun", "srun", "torchrun", "deepspeed", "accelerate",
         "horovodrun", "docker", "podman", "apptainer", "singularity", "enroot"});
}

// "#!/usr/bin/env -S python3 -u" -> the interpreter's command words; empty: not a script.
std::vector<std::string> script_interpreter(const fs::path& script) {
    std::ifstream file(script, std::ios::binary);
    std::string line;
    if (!std::getline(file, line) || line.rfind("#!", 0) != 0) {
        return {};
    }
    std::vector<std::string> words = split_list(std::string_view(line).substr(2, 4096), " \t\r");
    if (!words.empty() && fs::path(words[0]).filename() == "env") {
        words.erase(words.begin());
        while (!words.empty() && (words[0][0] == '-' || words[0].find('=') != std::string::npos)) {
            words.erase(words.begin());
        }
    }
    return words;
}

void add_advice(const Installation& installation, Diagnosis* diagnosis) {
    const std::string library =
        installation.library.empty() ? "/path/to/libslimwire.so" : installation.library.string();
    diagnosis->advice = {
        fmt::format("one machine, torchrun, a script: slimwire run --policy p.toml -- CMD..."),
        fmt::format(
            "torchrun on several nodes: the same command on every node; workers inherit its "
            "environment"),
        fmt::format(
            "mpirun (Open MPI): mpirun -x LD_PRELOAD={} -x SLIMWIRE_POLICY=/shared/p.toml CMD",
            library),
        fmt::format("mpiexec (MPICH, Intel): mpiexec -genv LD_PRELOAD {} -genv SLIMWIRE_POLICY "
                    "/shared/p.toml CMD",
                    library),
        fmt::format("srun: srun --export=ALL,LD_PRELOAD={},SLIMWIRE_POLICY=/shared/p.toml CMD",
                    library),
        fmt::format("container: mount the library and the policy, then -e LD_PRELOAD={} -e "
                    "SLIMWIRE_POLICY=/shared/p.toml; setting it outside reaches only the client",
                    library),
        "library and policy must lie on every node; ranks compare what the policy means, not its "
        "path",
    };
}

void examine_installation(const Installation& installation, Diagnosis* diagnosis) {
    diagnosis->library = installation.library.string();
    diagnosis->emulator = installation.emulator.string();
    if (installation.library.empty()) {
        diagnosis->add(Severity::kError,
                       "libslimwire.so is not beside this program; build it (ninja -C build)");
    } else if (Result<ElfFile> elf = read_elf(installation.library); !elf.ok()) {
        diagnosis->add(Severity::kError, elf.status().message());
    } else if (!same_architecture(elf.value())) {
        diagnosis->add(Severity::kError,
                       fmt::format("{} is for {}", diagnosis->library,
                                   architecture_name(elf.value().elf_class, elf.value().machine)));
    }
    diagnosis->ucx_version = ucx_version();
    if (diagnosis->ucx_version.empty()) {
        diagnosis->add(installation.emulator.empty() ? Severity::kNote : Severity::kWarning,
                       "UCX (libucp.so.0) is missing: --emulate cannot work, nor the net plugin "
                       "without SLIMWIRE_NET_INNER; on Debian: apt-get install libucx0");
    }
    diagnosis->driver_version =
        ask_version("libcuda.so.1", "cuDriverGetVersion", cuda_version_text);
    if (diagnosis->driver_version.empty()) {
        diagnosis->add(Severity::kNote,
                       "no CUDA driver (libcuda.so.1): jobs on this machine need --emulate");
    }
}

void examine_static_program(const ElfFile& elf, Diagnosis* diagnosis) {
    diagnosis->kind = "static program";
    diagnosis->hook = Hook::kUnreachable;
    diagnosis->hook_reason = "the program is statically linked: nothing can be loaded into it";
    diagnosis->add(Severity::kError,
                   fmt::format("{} is statically linked: relink it with the shared "
                               "libc and libnccl.so.2",
                               elf.path.string()));
}

// Follows scripts to the ELF file that would run.
void examine_command(const Environment& environment, Diagnosis* diagnosis) {
    std::string name = diagnosis->command[0];
    std::string first_line_owner;
    for (int depth = 0; depth < kMaxInterpreters; ++depth) {
        Result<fs::path> found = find_command(name, environment);
        if (!found.ok()) {
            diagnosis->add(Severity::kError, first_line_owner.empty()
                                                 ? found.status().message()
                                                 : fmt::format("{} asks for {}", first_line_owner,
                                                               found.status().message()));
            return;
        }
        const fs::path path = found.value();
        if (depth == 0 && is_launcher(path)) {
            diagnosis->add(
                Severity::kNote,
                fmt::format("{} is a launcher: examine the program it starts with slimwire "
                            "doctor -- PROGRAM, on the node where it runs",
                            path.filename().string()));
            diagnosis->kind = "launcher";
        }
        Result<ElfFile> elf = read_elf(path);
        if (elf.ok()) {
            const ElfFile& file = elf.value();
            diagnosis->program = path.string();
            if (!same_architecture(file)) {
                diagnosis->hook = Hook::kUnreachable;
                diagnosis->hook_reason = "the program is for another architecture";
                diagnosis->add(
                    Severity::kError,
                    fmt::format("{} is for {}: use a slimwire built for it", path.string(),
                                architecture_name(file.elf_class, file.machine)));
                return;
            }
            if (!file.dynamic || file.interpreter.empty()) {
                examine_static_program(file, diagnosis);
                return;
            }
            std::error_code error;
            if (!fs::exists(file.interpreter, error)) {
                diagnosis->add(Severity::kError,
                               fmt::format("{} wants the loader {}, which is not here",
                                           path.string(), file.interpreter));
            }
            if (is_python(path)) {
                diagnosis->kind = "python";
                examine_python(path, environment, diagnosis);
                return;
            }
            if (is_shell(path)) {
                diagnosis->kind = "shell script";
                diagnosis->hook_reason =
                    "a shell: LD_PRELOAD is inherited by what it starts, which decides";
                diagnosis->add(Severity::kNote, "examine the program that the script starts");
                return;
            }
            if (diagnosis->kind.empty()) {
                diagnosis->kind = "program";
            }
            examine_plan(plan_load(file, environment), environment, diagnosis);
            return;
        }
        const std::vector<std::string> interpreter = script_interpreter(path);
        if (elf.status().code() != Code::kUnsupported || interpreter.empty()) {
            diagnosis->add(Severity::kError,
                           interpreter.empty() ? fmt::format("{}: neither an ELF file nor a script "
                                                             "that begins with #!",
                                                             path.string())
                                               : elf.status().message());
            return;
        }
        diagnosis->chain.push_back(path.string());
        first_line_owner = path.string();
        name = interpreter[0];
    }
    diagnosis->add(Severity::kError, fmt::format("{}: more than {} interpreters behind each other",
                                                 diagnosis->command[0], kMaxInterpreters));
}

FoundLibrary describe(const LoadedObject& object) {
    FoundLibrary found{.name = object.name,
                       .path = object.path.string(),
                       .found_by = object.found_by,
                       .wanted_by = object.requested_by,
                       .version = {}};
    if (!object.path.empty()) {
        found.version = object.name.rfind("libnccl", 0) == 0 ? nccl_version(object.path)
                                                             : cudart_version(object.path);
    }
    return found;
}

}  // namespace

const char* severity_name(Severity severity) noexcept {
    switch (severity) {
        case Severity::kNote:
            return "note";
        case Severity::kWarning:
            return "warning";
        case Severity::kError:
            return "error";
    }
    return "?";
}

const char* hook_name(Hook hook) noexcept {
    switch (hook) {
        case Hook::kUnknown:
            return "unknown";
        case Hook::kPreload:
            return "LD_PRELOAD";
        case Hook::kDropin:
            return "drop-in";
        case Hook::kUnreachable:
            return "unreachable";
        case Hook::kNoNccl:
            return "no NCCL";
    }
    return "?";
}

bool Diagnosis::has_error() const {
    return std::any_of(findings.begin(), findings.end(),
                       [](const Finding& finding) { return finding.severity == Severity::kError; });
}

std::string nccl_version(const fs::path& library) {
    return ask_version(library.string(), "ncclGetVersion", nccl_version_text);
}

std::string cudart_version(const fs::path& library) {
    return ask_version(library.string(), "cudaRuntimeGetVersion", cuda_version_text);
}

void examine_plan(const LoadPlan& plan, const Environment& environment, Diagnosis* diagnosis) {
    const LoadedObject* nccl = nullptr;
    const ElfFile* opener = plan.program.names_nccl_library ? &plan.program : nullptr;
    const ElfFile* container = plan.program.contains_nccl ? &plan.program : nullptr;
    for (const LoadedObject& object : plan.objects) {
        const bool is_nccl = object.name.rfind("libnccl.so", 0) == 0;
        const bool is_cudart = object.name.rfind("libcudart.so", 0) == 0;
        if (is_nccl || is_cudart) {
            diagnosis->libraries.push_back(describe(object));
        }
        if (is_nccl) {
            nccl = &object;
        } else if (!object.path.empty() && object.found_by != "LD_PRELOAD") {
            opener = opener == nullptr && object.elf.names_nccl_library ? &object.elf : opener;
            container = container == nullptr && object.elf.contains_nccl ? &object.elf : container;
        }
        if (object.path.empty()) {
            diagnosis->add(
                Severity::kError,
                fmt::format("{} needs {}, which is not found{}{}", object.requested_by, object.name,
                            object.found_by.empty() ? "; set LD_LIBRARY_PATH to its folder" : ": ",
                            object.found_by));
        }
    }
    if (container != nullptr) {
        const std::string path = container->path.string();
        if (container->exports_nccl && !container->symbolic) {
            diagnosis->hook = Hook::kPreload;
            diagnosis->hook_reason = fmt::format(
                "{} holds NCCL itself and exports it: LD_PRELOAD comes before it as far as its own "
                "calls go through the dynamic symbol table",
                path);
            diagnosis->add(
                Severity::kWarning,
                fmt::format("{} has NCCL linked in statically: check a report for calls; if "
                            "there are none, use a build with libnccl.so.2",
                            path));
        } else {
            diagnosis->hook = Hook::kUnreachable;
            diagnosis->hook_reason = fmt::format("{} has NCCL linked in statically", path);
            diagnosis->add(
                Severity::kError,
                fmt::format("{} has NCCL linked in statically: no preload reaches it; link "
                            "against libnccl.so.2",
                            path));
        }
        return;
    }
    if (nccl != nullptr) {
        diagnosis->hook = Hook::kPreload;
        diagnosis->hook_reason =
            fmt::format("{} needs {}: LD_PRELOAD comes before it", nccl->requested_by, nccl->name);
        if (nccl->found_by.rfind("rpath", 0) == 0) {
            diagnosis->add(Severity::kNote,
                           fmt::format("found by {}: LD_LIBRARY_PATH does not replace "
                                       "it, so --dropin would be ignored",
                                       nccl->found_by));
        }
        return;
    }
    if (opener != nullptr) {
        diagnosis->hook = Hook::kDropin;
        diagnosis->hook_reason = fmt::format(
            "{} names libnccl.so and does not need it: it is opened at run time, where only "
            "--dropin "
            "reaches",
            opener->path.string());
        LoadedObject opened = plan_dlopen(plan, "libnccl.so.2", environment);
        opened.requested_by = opener->path.string();
        diagnosis->libraries.push_back(describe(opened));
        if (opened.path.empty()) {
            diagnosis->add(Severity::kWarning,
                           "libnccl.so.2 is not found by that name; set "
                           "LD_LIBRARY_PATH to its folder");
        }
        return;
    }
    diagnosis->hook = Hook::kNoNccl;
    diagnosis->hook_reason =
        "neither the program nor a library it needs uses NCCL; what it opens at "
        "run time or starts cannot be seen from here";
}

Diagnosis diagnose(const std::vector<std::string>& command,
                   const Environment& environment,
                   const Installation& installation) {
    Diagnosis diagnosis;
    diagnosis.command = command;
    examine_installation(installation, &diagnosis);
    add_advice(installation, &diagnosis);
    if (!command.empty()) {
        examine_command(environment, &diagnosis);
    }
    examine_net(installation.net_plugin, environment, &diagnosis);
    return diagnosis;
}

}  // namespace slimwire::cli
