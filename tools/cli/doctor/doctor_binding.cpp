// How a program binds NCCL, by what the loader says and its files hold, and which hooks reach it
// then. The table is that of plugin/README.md; the test plugin.hooks holds this against what really
// happens.
#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>

#include "tools/cli/common/subprocess.h"
#include "tools/cli/doctor/doctor.h"

namespace slimwire::cli {
namespace {

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

constexpr HookReach kNowhere = {Reach::kNo, Reach::kNo, Reach::kNo};
// Preload, drop-in, audit.
constexpr HookReach kOpened = {Reach::kNo, Reach::kByName, Reach::kYes};

HookReach linked(const LoadedObject& nccl) {
    // The drop-in's folder stands on LD_LIBRARY_PATH: behind RPATH, before all else.
    const bool before = nccl.found_by.rfind("rpath", 0) == 0 || nccl.found_by == "path" ||
                        nccl.found_by == "LD_PRELOAD";
    return {Reach::kYes, before ? Reach::kNo : Reach::kYes, Reach::kYes};
}

// Whether a library gives others its own NCCL.
bool exports_nccl(const std::filesystem::path& library) {
    return !ask_in_child([&]() -> std::string {
                void* handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
                return handle != nullptr && ::dlsym(handle, "ncclAllReduce") != nullptr ? "yes"
                                                                                        : "";
            }).empty();
}

void examine_static_nccl(const std::filesystem::path& container,
                         bool is_program,
                         Diagnosis* diagnosis) {
    const std::string path = container.string();
    diagnosis->binding = fmt::format("{} has NCCL linked in statically", path);
    diagnosis->reach = kNowhere;
    // A program's own calls are bound when it is linked, a library's perhaps not.
    if (!is_program && exports_nccl(container)) {
        diagnosis->verdict = Verdict::kPreload;
        diagnosis->reach[0] = Reach::kUnknown;
        diagnosis->hook_reason = fmt::format(
            "{} holds NCCL itself and exports it: LD_PRELOAD comes before it as far as its own "
            "calls go through the dynamic symbol table",
            path);
        diagnosis->add(Severity::kWarning,
                       fmt::format("{} has NCCL linked in statically: check a report for calls; if "
                                   "there are none, use a build with libnccl.so.2",
                                   path));
        return;
    }
    diagnosis->verdict = Verdict::kUnreachable;
    diagnosis->hook_reason = diagnosis->binding;
    diagnosis->add(Severity::kError,
                   fmt::format("{} has NCCL linked in statically: no preload reaches it; link "
                               "against libnccl.so.2",
                               path));
}

}  // namespace

void set_opened(const std::string& opener, Diagnosis* diagnosis) {
    diagnosis->binding = fmt::format("{} opens libnccl.so.2 at run time", opener);
    diagnosis->verdict = Verdict::kAudit;
    diagnosis->reach = kOpened;
    diagnosis->hook_reason = fmt::format(
        "{} names libnccl.so and does not need it: it is opened at run time, where LD_PRELOAD "
        "alone does not reach: slimwire run takes LD_AUDIT, which does",
        opener);
}

void examine_libraries(const ElfFile& file, const Environment& environment, Diagnosis* diagnosis) {
    const Result<LoadPlan> listed = list_libraries(file, environment);
    if (!listed.ok()) {
        diagnosis->add(Severity::kError, listed.status().message());
        return;
    }
    const LoadPlan& plan = listed.value();
    const LoadedObject* nccl = plan.find("libnccl.so");
    std::vector<std::filesystem::path> files = {file.path};
    for (const LoadedObject& object : plan.objects) {
        if (object.name.starts_with("libnccl.so") || object.name.starts_with("libcudart.so")) {
            diagnosis->libraries.push_back(describe(object));
        }
        if (object.path.empty()) {
            diagnosis->add(Severity::kError,
                           fmt::format("{} needs {}, which is not found; set LD_LIBRARY_PATH to "
                                       "its folder",
                                       object.requested_by, object.name));
        } else if (object.found_by != "LD_PRELOAD") {
            files.push_back(object.path);
        }
    }
    for (const std::filesystem::path& one : files) {
        if (holds_nccl(one, plan)) {
            examine_static_nccl(one, one == file.path && !file.interpreter.empty(), diagnosis);
            return;
        }
    }
    if (nccl != nullptr) {
        diagnosis->verdict = Verdict::kPreload;
        diagnosis->binding = fmt::format("{} needs {}, found by {}", nccl->requested_by, nccl->name,
                                         nccl->found_by.empty() ? "nothing" : nccl->found_by);
        diagnosis->reach = linked(*nccl);
        diagnosis->hook_reason =
            fmt::format("{} needs {}: LD_PRELOAD comes before it", nccl->requested_by, nccl->name);
        if (nccl->found_by.rfind("rpath", 0) == 0) {
            diagnosis->add(Severity::kNote,
                           fmt::format("found by {}: LD_LIBRARY_PATH does not replace "
                                       "it, so --hook dropin would be ignored",
                                       nccl->found_by));
        }
        return;
    }
    const auto opener = std::find_if(
        files.begin(), files.end(),
        [](const std::filesystem::path& one) { return file_contains(one, kNcclLibraryText); });
    if (opener != files.end()) {
        set_opened(opener->string(), diagnosis);
        const Result<LoadPlan> with = list_libraries(file, environment, "libnccl.so.2");
        const LoadedObject* opened = with.ok() ? with.value().find("libnccl.so") : nullptr;
        LoadedObject found = opened != nullptr ? *opened : LoadedObject{"libnccl.so.2", {}, {}, {}};
        found.requested_by = opener->string();
        diagnosis->libraries.push_back(describe(found));
        if (found.path.empty()) {
            diagnosis->add(Severity::kWarning,
                           "libnccl.so.2 is not found by that name; set "
                           "LD_LIBRARY_PATH to its folder");
        }
        return;
    }
    diagnosis->verdict = Verdict::kNoNccl;
    diagnosis->hook_reason =
        "neither the program nor a library it needs uses NCCL; what it opens at "
        "run time or starts cannot be seen from here";
}

// Python for `doctor`: NCCL comes in through extension modules, so their files are examined where
// the interpreter would import them from. No module is imported.

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
