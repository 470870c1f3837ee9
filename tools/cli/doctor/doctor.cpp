#include "tools/cli/doctor/doctor.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <system_error>

#include "collectives/policy/variables.h"
#include "tools/cli/common/subprocess.h"
#include "tools/cli/run/job.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxInterpreters = 5;

// What `said_by` makes of `symbol` of `library`, in a child; empty where there is none.
template <class Function>
std::string ask_library(const std::string& library,
                        const char* symbol,
                        const std::function<std::string(Function*)>& said_by) {
    return ask_in_child([&]() -> std::string {
        void* handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
        auto* function =
            reinterpret_cast<Function*>(handle != nullptr ? ::dlsym(handle, symbol) : nullptr);
        return function != nullptr ? said_by(function) : std::string();
    });
}

// Calls `symbol`, which fills one int and returns 0.
std::string ask_version(const std::string& library, const char* symbol, std::string (*text)(int)) {
    return ask_library<int(int*)>(library, symbol, [&](auto* function) {
        int version = 0;
        return function(&version) == 0 ? text(version) : std::string();
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
    return ask_library<const char*()>("libucp.so.0", "ucp_get_version_string",
                                      [](auto* function) { return std::string(function()); });
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

// A module that some program opens, as libtorch_cuda.so.
bool is_library(const ElfFile& file) {
    return file.interpreter.empty() &&
           file.path.filename().string().find(".so") != std::string::npos;
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
        "where the preload does not reach (see the line `reach`): slimwire run, or for a launcher "
        "that passes variables on LD_AUDIT=.../libslimwire-audit.so instead of LD_PRELOAD",
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

// Where the environment says that nothing will be compressed.
void examine_configuration(const Environment& environment, Diagnosis* diagnosis) {
    const Result<Config> config = configuration_of(environment);
    if (!config.ok()) {
        diagnosis->add(Severity::kError, config.status().message());
    } else {
        for (const std::string& warning : config.value().policy.warnings) {
            diagnosis->add(Severity::kWarning, "policy " + warning);
        }
    }
    const std::string mode = environment.text("SLIMWIRE_MODE");
    const std::string trace = environment.text("SLIMWIRE_TRACE");
    if (mode == "off") {
        diagnosis->add(Severity::kNote, "SLIMWIRE_MODE=off: every call is forwarded as it is");
    } else if (mode == "record" || mode == "shadow") {
        diagnosis->add(
            Severity::kNote,
            fmt::format("SLIMWIRE_MODE={}: the job is native{}, and its calls are written to {}",
                        mode, mode == "shadow" ? ", the policy is only tried beside it" : "",
                        trace.empty() ? find_variable("SLIMWIRE_TRACE")->default_text : trace));
    }
}

// No hook reaches the program.
void unreachable(const char* reason, const std::string& error, Diagnosis* diagnosis) {
    diagnosis->verdict = Verdict::kUnreachable;
    diagnosis->reach.fill(Reach::kNo);
    diagnosis->hook_reason = reason;
    diagnosis->add(Severity::kError, error);
}

// As find_command; a library need not be executable.
Result<fs::path> find_program(const std::string& name, const Environment& environment) {
    std::error_code error;
    if (name.find('/') != std::string::npos &&
        fs::path(name).filename().string().find(".so") != std::string::npos &&
        fs::is_regular_file(name, error)) {
        return fs::path(name);
    }
    return find_command(name, environment);
}

// The ELF file that would run.
void examine_program(const fs::path& path,
                     const ElfFile& file,
                     const Environment& environment,
                     Diagnosis* diagnosis) {
    diagnosis->program = path.string();
    if (!same_architecture(file)) {
        unreachable("the program is for another architecture",
                    fmt::format("{} is for {}: use a slimwire built for it", path.string(),
                                architecture_name(file.elf_class, file.machine)),
                    diagnosis);
        return;
    }
    if (gains_rights(path)) {
        unreachable("the loader keeps hooks out of programs with their owner's rights",
                    fmt::format("{} has its owner's rights (setuid, setgid or capabilities): "
                                "start a copy without them",
                                path.string()),
                    diagnosis);
        return;
    }
    if (is_library(file)) {
        diagnosis->kind = "library";
        examine_libraries(file, environment, diagnosis);
        return;
    }
    if (file.interpreter.empty()) {
        diagnosis->kind = "static program";
        unreachable("the program is statically linked: nothing can be loaded into it",
                    fmt::format("{} is statically linked: relink it with the shared "
                                "libc and libnccl.so.2",
                                file.path.string()),
                    diagnosis);
        return;
    }
    std::error_code error;
    if (!fs::exists(file.interpreter, error)) {
        diagnosis->add(Severity::kError, fmt::format("{} wants the loader {}, which is not here",
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
    examine_libraries(file, environment, diagnosis);
}

// Follows scripts to the ELF file that would run.
void examine_command(const Environment& environment, Diagnosis* diagnosis) {
    std::string name = diagnosis->command[0];
    std::string first_line_owner;
    for (int depth = 0; depth < kMaxInterpreters; ++depth) {
        Result<fs::path> found = find_program(name, environment);
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
            examine_program(path, elf.value(), environment, diagnosis);
            return;
        }
        const std::vector<std::string> interpreter = script_interpreter(path);
        const bool damaged = elf.status().code() != Code::kUnsupported;
        if (damaged || interpreter.empty()) {
            diagnosis->add(Severity::kError,
                           damaged ? elf.status().message()
                                   : fmt::format("{}: neither an ELF file nor a script "
                                                 "that begins with #!",
                                                 path.string()));
            return;
        }
        diagnosis->chain.push_back(path.string());
        first_line_owner = path.string();
        name = interpreter[0];
    }
    diagnosis->add(Severity::kError, fmt::format("{}: more than {} interpreters behind each other",
                                                 diagnosis->command[0], kMaxInterpreters));
}

}  // namespace

const char* severity_name(Severity severity) noexcept {
    constexpr const char* kNames[] = {"note", "warning", "error"};
    return kNames[static_cast<size_t>(severity)];
}

const char* verdict_name(Verdict verdict) noexcept {
    constexpr const char* kNames[] = {"unknown", "LD_PRELOAD", "LD_AUDIT", "unreachable",
                                      "no NCCL"};
    return kNames[static_cast<size_t>(verdict)];
}

const char* reach_name(Reach reach) noexcept {
    constexpr const char* kNames[] = {"unknown", "no", "by name", "yes"};
    return kNames[static_cast<size_t>(reach)];
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

Diagnosis diagnose(const std::vector<std::string>& command,
                   const Environment& environment,
                   const Installation& installation) {
    Diagnosis diagnosis;
    diagnosis.command = command;
    examine_installation(installation, &diagnosis);
    examine_configuration(environment, &diagnosis);
    add_advice(installation, &diagnosis);
    if (!command.empty()) {
        examine_command(environment, &diagnosis);
    }
    examine_net(installation.net_plugin, environment, &diagnosis);
    return diagnosis;
}

}  // namespace slimwire::cli
