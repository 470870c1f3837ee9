// Python for `doctor`: NCCL comes in through extension modules, so their files are examined where
// the interpreter would import them from. No module is imported.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>

#include "tools/cli/common/subprocess.h"
#include "tools/cli/doctor/doctor.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

// Folders of sys.path, asked from the interpreter (its site packages and .pth files count; nothing
// of the job is run).
std::vector<fs::path> import_folders(const fs::path& interpreter, const Environment& environment) {
    const Result<Captured> answer =
        run_captured({interpreter.string(), "-c", "import sys\nprint('\\n'.join(sys.path))"},
                     environment, 20, true);
    std::vector<fs::path> folders;
    if (answer.ok() && answer.value().exit_code == 0) {
        for (const std::string& line : split_list(answer.value().output, "\n")) {
            folders.emplace_back(line);
        }
    }
    return folders;
}

// The first `relative` file under the folders; empty: none.
fs::path first_file(const std::vector<fs::path>& folders, const char* relative) {
    for (const fs::path& folder : folders) {
        std::error_code error;
        if (fs::is_regular_file(folder / relative, error)) {
            return folder / relative;
        }
    }
    return {};
}

// The scripts that the command names, as far as they lie here.
std::vector<fs::path> scripts_of(const Diagnosis& diagnosis) {
    std::vector<fs::path> scripts(diagnosis.chain.begin(), diagnosis.chain.end());
    for (size_t i = 1; i < diagnosis.command.size(); ++i) {
        std::error_code error;
        if (fs::path(diagnosis.command[i]).extension() == ".py" &&
            fs::is_regular_file(diagnosis.command[i], error)) {
            scripts.emplace_back(diagnosis.command[i]);
        }
    }
    return scripts;
}

bool mentions_nccl(const fs::path& script) {
    std::ifstream file(script, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str().find("libnccl.so") != std::string::npos;
}

}  // namespace

void examine_python(const fs::path& interpreter,
                    const Environment& environment,
                    Diagnosis* diagnosis) {
    diagnosis->hook_reason = "Python: the extension modules that the job imports decide";
    const std::vector<fs::path> folders = import_folders(interpreter, environment);
    if (folders.empty()) {
        diagnosis->add(Severity::kWarning,
                       fmt::format("{} did not say where it imports from", interpreter.string()));
        return;
    }
    const fs::path wheel = first_file(folders, "nvidia/nccl/lib/libnccl.so.2");
    const fs::path torch = first_file(folders, "torch/lib/libtorch_cuda.so");
    if (!torch.empty()) {
        Result<ElfFile> elf = read_elf(torch);
        if (!elf.ok()) {
            diagnosis->add(Severity::kError, elf.status().message());
            return;
        }
        examine_libraries(elf.value(), environment, diagnosis);
        diagnosis->hook_reason = "PyTorch: " + diagnosis->hook_reason;
    }
    const bool known = std::any_of(
        diagnosis->libraries.begin(), diagnosis->libraries.end(), [&](const FoundLibrary& library) {
            std::error_code error;
            return !library.path.empty() && fs::equivalent(library.path, wheel, error);
        });
    if (!wheel.empty() && !known) {
        diagnosis->libraries.push_back({.name = "libnccl.so.2",
                                        .path = wheel.string(),
                                        .found_by = "the nvidia-nccl package",
                                        .wanted_by = "modules that preload it",
                                        .version = nccl_version(wheel)});
    }
    if (!first_file(folders, "jaxlib/__init__.py").empty()) {
        diagnosis->add(
            Severity::kNote,
            "JAX opens libnccl.so.2 at run time: reached by LD_AUDIT, not by the preload");
        if (torch.empty()) {
            set_opened("JAX", diagnosis);
        }
    }
    for (const fs::path& script : scripts_of(*diagnosis)) {
        if (!mentions_nccl(script)) {
            continue;
        }
        if (torch.empty()) {
            set_opened(script.string(), diagnosis);
        } else {
            diagnosis->add(Severity::kNote,
                           fmt::format("{} names libnccl.so: what it opens by itself (ctypes) is "
                                       "reached by LD_AUDIT, not by the preload",
                                       script.string()));
        }
    }
    if (const std::string path = environment.text("VLLM_NCCL_SO_PATH"); !path.empty()) {
        diagnosis->add(Severity::kNote,
                       fmt::format("VLLM_NCCL_SO_PATH={}: vLLM opens that file by its path: "
                                   "reached by LD_AUDIT alone",
                                   path));
    }
    if (torch.empty() && wheel.empty()) {
        diagnosis->add(Severity::kNote,
                       fmt::format("{} can import neither a PyTorch with CUDA nor the nvidia-nccl "
                                   "package",
                                   interpreter.string()));
    }
}

}  // namespace slimwire::cli
