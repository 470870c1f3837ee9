#include "tools/cli/loader_search.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

#if defined(__x86_64__)
constexpr const char* kMultiarch = "x86_64-linux-gnu";
constexpr const char* kPlatform = "x86_64";
#else
constexpr const char* kMultiarch = "aarch64-linux-gnu";
constexpr const char* kPlatform = "aarch64";
#endif

// Sub-folders that the loader tries before a folder itself.
std::vector<std::string> hardware_folders() {
    std::vector<std::string> folders;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4")) {
        folders.emplace_back("glibc-hwcaps/x86-64-v4");
    }
    if (__builtin_cpu_supports("x86-64-v3")) {
        folders.emplace_back("glibc-hwcaps/x86-64-v3");
    }
    if (__builtin_cpu_supports("x86-64-v2")) {
        folders.emplace_back("glibc-hwcaps/x86-64-v2");
    }
#endif
    folders.emplace_back("");
    return folders;
}

std::string replace_all(std::string text, std::string_view from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
        text.replace(at, from.size(), to);
    }
    return text;
}

// Elements of a search path with the loader's variables replaced. An empty element is the working
// folder.
std::vector<fs::path> expand_path(std::string_view list,
                                  const fs::path& owner,
                                  std::string_view separators) {
    std::vector<fs::path> folders;
    const std::string origin = fs::absolute(owner).parent_path().string();
    size_t begin = 0;
    while (begin <= list.size() && !list.empty()) {
        const size_t end = std::min(list.find_first_of(separators, begin), list.size());
        std::string item(list.substr(begin, end - begin));
        for (const auto& [name, value] : {std::pair<std::string, std::string>{"ORIGIN", origin},
                                          {"LIB", std::string("lib/") + kMultiarch},
                                          {"PLATFORM", kPlatform}}) {
            item = replace_all(item, "${" + name + "}", value);
            item = replace_all(item, "$" + name, value);
        }
        folders.emplace_back(item.empty() ? "." : item);
        begin = end + 1;
    }
    return folders;
}

// Name -> path of `ldconfig -p` for this architecture, first entry wins as in the loader.
const std::map<std::string, std::string>& loader_cache() {
    static const std::map<std::string, std::string> cache = [] {
        std::map<std::string, std::string> entries;
        for (const char* tool :
             {"/sbin/ldconfig -p 2>/dev/null", "/usr/sbin/ldconfig -p 2>/dev/null"}) {
            const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(tool, "r"), ::pclose);
            if (pipe == nullptr) {
                continue;
            }
            std::array<char, 4096> line;
            while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
                // "\tlibm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6"
                const std::string text = line.data();
                const size_t paren = text.find(" (");
                const size_t arrow = text.find(" => ");
                const std::string flags = paren == std::string::npos || arrow == std::string::npos
                                              ? ""
                                              : text.substr(paren, arrow - paren);
                if (flags.find("x86-64") == std::string::npos &&
                    flags.find("AArch64") == std::string::npos) {
                    continue;
                }
                const size_t start = text.find_first_not_of("\t ");
                std::string path = text.substr(arrow + 4);
                path.erase(path.find_last_not_of("\n ") + 1);
                entries.emplace(text.substr(start, paren - start), path);
            }
            if (!entries.empty()) {
                break;
            }
        }
        return entries;
    }();
    return cache;
}

class Search {
  public:
    Search(const ElfFile& program, const Environment& environment) {
        plan_.program = program;
        const char* library_path = environment.get("LD_LIBRARY_PATH");
        library_path_ =
            expand_path(library_path != nullptr ? library_path : "", program.path, ":;");
        const char* preload = environment.get("LD_PRELOAD");
        for (const std::string& name : split_list(preload != nullptr ? preload : "", ": ")) {
            add(name, -1, "LD_PRELOAD");
        }
        for (const std::string& name : program.needed) {
            add(name, -1, program.path.string());
        }
        // Breadth first, as the loader's own list.
        for (size_t i = 0; i < plan_.objects.size(); ++i) {
            if (plan_.objects[i].path.empty()) {
                continue;
            }
            const std::vector<std::string> needed = plan_.objects[i].elf.needed;
            for (const std::string& name : needed) {
                add(name, static_cast<int>(i), plan_.objects[i].path.string());
            }
        }
    }
    explicit Search(LoadPlan plan, const Environment& environment) : plan_(std::move(plan)) {
        const char* library_path = environment.get("LD_LIBRARY_PATH");
        library_path_ =
            expand_path(library_path != nullptr ? library_path : "", plan_.program.path, ":;");
    }

    LoadPlan take() { return std::move(plan_); }

    LoadedObject locate(const std::string& name, int loader) {
        LoadedObject object;
        object.name = name;
        object.loader = loader;
        skipped_.clear();
        if (name.find('/') != std::string::npos) {
            const ElfFile& owner = requester(loader);
            const std::vector<fs::path> expanded = expand_path(name, owner.path, "\n");
            (void)accept(expanded.front(), "path", &object);
        } else {
            search(name, loader, &object);
        }
        if (object.path.empty()) {
            object.found_by = skipped_;
        }
        return object;
    }

  private:
    [[nodiscard]] const ElfFile& requester(int loader) const {
        return loader < 0 ? plan_.program : plan_.objects[static_cast<size_t>(loader)].elf;
    }

    void add(const std::string& name, int loader, const std::string& requested_by) {
        for (const LoadedObject& known : plan_.objects) {
            if (known.name == name || (!known.path.empty() && known.elf.soname == name)) {
                return;
            }
        }
        LoadedObject object = locate(name, loader);
        object.requested_by = requested_by;
        if (requested_by == "LD_PRELOAD" && !object.path.empty()) {
            object.found_by = "LD_PRELOAD";
        }
        for (const LoadedObject& known : plan_.objects) {
            std::error_code error;
            if (!known.path.empty() && !object.path.empty() &&
                fs::equivalent(known.path, object.path, error)) {
                return;
            }
        }
        plan_.objects.push_back(std::move(object));
    }

    bool accept(const fs::path& path, const std::string& how, LoadedObject* object) {
        Result<ElfFile> elf = read_elf(path);
        if (!elf.ok()) {
            if (elf.status().code() != Code::kNotFound) {
                skipped_ += (skipped_.empty() ? "" : "; ") + elf.status().message();
            }
            return false;
        }
        // The loader passes over files of another architecture and goes on searching.
        if (!same_architecture(elf.value())) {
            skipped_ += fmt::format("{}{} is for {}", skipped_.empty() ? "" : "; ", path.string(),
                                    architecture_name(elf.value().elf_class, elf.value().machine));
            return false;
        }
        object->path = path;
        object->found_by = how;
        object->elf = std::move(elf).value();
        return true;
    }

    bool try_folders(const std::vector<fs::path>& folders,
                     const std::string& name,
                     const std::string& how,
                     LoadedObject* object) {
        static const std::vector<std::string> hardware = hardware_folders();
        for (const fs::path& folder : folders) {
            for (const std::string& sub : hardware) {
                const fs::path base = sub.empty() ? folder : folder / sub;
                if (accept(base / name, how, object)) {
                    return true;
                }
            }
        }
        return false;
    }

    void search(const std::string& name, int loader, LoadedObject* object) {
        const ElfFile& owner = requester(loader);
        if (!owner.has_runpath) {
            for (int at = loader;; at = plan_.objects[static_cast<size_t>(at)].loader) {
                const ElfFile& file = requester(at);
                if (!file.has_runpath && !file.rpath.empty() &&
                    try_folders(expand_path(file.rpath, file.path, ":"), name,
                                fmt::format("rpath of {}", file.path.string()), object)) {
                    return;
                }
                if (at < 0) {
                    break;
                }
            }
        }
        if (try_folders(library_path_, name, "LD_LIBRARY_PATH", object)) {
            return;
        }
        if (owner.has_runpath &&
            try_folders(expand_path(owner.runpath, owner.path, ":"), name,
                        fmt::format("runpath of {}", owner.path.string()), object)) {
            return;
        }
        const auto cached = loader_cache().find(name);
        if (cached != loader_cache().end() && accept(cached->second, "ld.so.cache", object)) {
            return;
        }
        const std::string multiarch = kMultiarch;
        (void)try_folders({"/lib/" + multiarch, "/usr/lib/" + multiarch, "/lib64", "/usr/lib64",
                           "/lib", "/usr/lib"},
                          name, "default folder", object);
    }

    LoadPlan plan_;
    std::vector<fs::path> library_path_;
    std::string skipped_;
};

}  // namespace

const LoadedObject* LoadPlan::find(const std::string& soname) const {
    for (const LoadedObject& object : objects) {
        if (object.name == soname || (!object.path.empty() && object.elf.soname == soname)) {
            return &object;
        }
    }
    return nullptr;
}

LoadPlan plan_load(const ElfFile& program, const Environment& environment) {
    return Search(program, environment).take();
}

LoadedObject plan_dlopen(const LoadPlan& plan,
                         const std::string& name,
                         const Environment& environment) {
    if (const LoadedObject* loaded = plan.find(name); loaded != nullptr && !loaded->path.empty()) {
        return *loaded;
    }
    return Search(plan, environment).locate(name, -1);
}

Result<fs::path> find_command(const std::string& command, const Environment& environment) {
    if (command.empty()) {
        return Status(Code::kNotFound, "the command is empty");
    }
    std::vector<fs::path> candidates;
    if (command.find('/') != std::string::npos) {
        candidates.emplace_back(command);
    } else {
        const char* path = environment.get("PATH");
        for (const std::string& folder :
             split_list(path != nullptr ? path : "/bin:/usr/bin", ":")) {
            candidates.push_back(fs::path(folder) / command);
        }
    }
    bool forbidden = false;
    for (const fs::path& candidate : candidates) {
        std::error_code error;
        if (!fs::is_regular_file(candidate, error)) {
            continue;
        }
        if (::access(candidate.c_str(), X_OK) == 0) {
            return candidate;
        }
        forbidden = true;
    }
    if (forbidden) {
        return Status(Code::kSystemError, fmt::format("{}: not executable", command));
    }
    return Status(Code::kNotFound,
                  fmt::format("{}: no such command{}", command,
                              command.find('/') == std::string::npos ? " in PATH" : ""));
}

}  // namespace slimwire::cli
