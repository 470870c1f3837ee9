#include "tools/cli/run/loader_search.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "codecs/base/descriptor.h"
#include "codecs/base/own_machine.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/subprocess.h"

namespace slimwire::cli {
namespace {

constexpr uint64_t kLongestInterpreter = 4096;

template <class T>
bool read_at(std::ifstream* file, uint64_t offset, T* value) {
    file->clear();
    file->seekg(static_cast<std::streamoff>(offset));
    file->read(reinterpret_cast<char*>(value), sizeof *value);
    return file->good();
}

}  // namespace

std::string architecture_name(int elf_class, uint16_t machine) {
    constexpr std::pair<uint16_t, const char*> kNames[] = {
        {EM_X86_64, "x86-64"}, {EM_AARCH64, "aarch64"}, {EM_386, "i386"},
        {EM_ARM, "arm"},       {EM_PPC64, "ppc64"},     {EM_RISCV, "riscv"}};
    const auto* const known = std::find_if(std::begin(kNames), std::end(kNames),
                                           [&](const auto& one) { return one.first == machine; });
    const std::string name =
        known != std::end(kNames) ? known->second : fmt::format("machine {}", machine);
    return elf_class == ELFCLASS32 ? name + " 32-bit" : name;
}

bool same_architecture(const ElfFile& file) {
    return file.elf_class == ELFCLASS64 && file.machine == kOwnMachine;
}

Result<ElfFile> read_elf(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
        return Status(Code::kNotFound, fmt::format("{}: {}", path.string(), std::strerror(ENOENT)));
    }
    std::ifstream file(path, std::ios::binary);
    unsigned char ident[EI_NIDENT] = {};
    if (!read_at(&file, 0, &ident) || std::memcmp(ident, ELFMAG, SELFMAG) != 0) {
        return Status(Code::kUnsupported, fmt::format("{}: not an ELF file", path.string()));
    }
    ElfFile elf;
    elf.path = path;
    elf.elf_class = ident[EI_CLASS];
    // It stands at the same place in both classes.
    if (!read_at(&file, offsetof(Elf32_Ehdr, e_machine), &elf.machine)) {
        return invalid(fmt::format("{}: ends inside the ELF header", path.string()));
    }
    if (!same_architecture(elf)) {
        return elf;
    }
    Elf64_Ehdr header{};
    if (!read_at(&file, 0, &header)) {
        return invalid(fmt::format("{}: ends inside the ELF header", path.string()));
    }
    const uint64_t size = std::filesystem::file_size(path, error);
    for (int i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment{};
        const bool read =
            read_at(&file, header.e_phoff + static_cast<uint64_t>(i) * sizeof segment, &segment);
        if (!read || (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > size)) {
            return invalid(fmt::format("{}: cut short: its segments end beyond its {} bytes",
                                       path.string(), size));
        }
        if (segment.p_type == PT_INTERP && segment.p_filesz <= kLongestInterpreter) {
            file.seekg(static_cast<std::streamoff>(segment.p_offset));
            std::getline(file, elf.interpreter, '\0');
        }
        if (segment.p_type == PT_TLS) {
            elf.tls_bytes = segment.p_memsz + segment.p_align;
        }
    }
    return elf;
}

bool gains_rights(const std::filesystem::path& program) {
    struct stat info {};
    if (::stat(program.c_str(), &info) != 0) {
        return false;
    }
    return ((info.st_mode & S_ISUID) != 0 && info.st_uid != ::geteuid()) ||
           ((info.st_mode & S_ISGID) != 0 && info.st_gid != ::getegid()) ||
           (::geteuid() != 0 && ::getxattr(program.c_str(), "security.capability", nullptr, 0) > 0);
}

bool file_contains(const std::filesystem::path& path, std::string_view text) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    bool found = false;
    if (file.valid() && ::fstat(file.fd(), &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_size > 0) {
        const auto size = static_cast<size_t>(info.st_size);
        void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
        if (data != MAP_FAILED) {
            found = ::memmem(data, size, text.data(), text.size()) != nullptr;
            ::munmap(data, size);
        }
    }
    return found;
}

namespace {

namespace fs = std::filesystem;

constexpr double kLoaderSeconds = 60;

// How the loader came to a library, by its LD_DEBUG=libs,files.
struct Search {
    std::string requested_by;
    std::string found_by;  // the last place that it looked at
};

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
    const size_t at = text.find(begin);
    if (at == std::string::npos) {
        return {};
    }
    const size_t from = at + begin.size();
    return text.substr(from, text.find(end, from) - from);
}

std::map<std::string, Search> read_debug_output(const fs::path& folder) {
    std::map<std::string, Search> searches;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        std::ifstream file(entry.path());
        std::string current;
        for (std::string line; std::getline(file, line);) {
            if (line.find("needed by ") != std::string::npos) {
                searches[between(line, "file=", " [")].requested_by =
                    between(line, "needed by ", " [");
            } else if (line.find("find library=") != std::string::npos) {
                current = between(line, "find library=", " [");
            } else if (line.find(" search cache=") != std::string::npos) {
                searches[current].found_by = "ld.so.cache";
            } else if (line.find(" search path=") != std::string::npos) {
                const std::string from = between(line, "\t\t(", ")");
                searches[current].found_by =
                    from.starts_with("RPATH")      ? "rpath of " + between(from, "file ", ")")
                    : from.starts_with("RUNPATH")  ? "runpath of " + between(from, "file ", ")")
                    : from == "system search path" ? "default folder"
                                                   : from;
            }
        }
    }
    return searches;
}

// "\tlibm.so.6 => /lib/libm.so.6 (0x...)", "\tlibx.so => not found", "\t/lib/liby.so (0x...)"
LoadedObject read_list_line(const std::string& line) {
    LoadedObject object;
    const std::string text = line.substr(line.find_first_not_of(" \t"));
    const size_t arrow = text.find(" => ");
    const size_t address = text.rfind(" (0x");
    if (arrow == std::string::npos) {
        object.path = text.substr(0, address);
        object.name = object.path.filename().string();
        object.found_by = "path";
        return object;
    }
    object.name = text.substr(0, arrow);
    if (address != std::string::npos) {
        object.path = text.substr(arrow + 4, address - arrow - 4);
    }
    return object;
}

}  // namespace

const LoadedObject* LoadPlan::find(const std::string& begin) const {
    const auto found =
        std::find_if(objects.begin(), objects.end(),
                     [&](const LoadedObject& object) { return object.name.starts_with(begin); });
    return found == objects.end() ? nullptr : &*found;
}

Result<LoadPlan> list_libraries(const ElfFile& file,
                                Environment environment,
                                const std::string& opened,
                                bool audited) {
    std::string loader = file.interpreter;
    if (loader.empty()) {
        SLIMWIRE_TRY_ASSIGN(const ElfFile own, read_elf("/proc/self/exe"));
        loader = own.interpreter;
    }
    // Another libc's would run the program.
    if (!fs::path(loader).filename().string().starts_with("ld-linux")) {
        return Status(Code::kUnsupported,
                      fmt::format("{} asks for the loader {}; accepted: glibc's",
                                  file.path.string(), loader));
    }
    SLIMWIRE_TRY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
    const std::vector<std::string> preloads = split_list(environment.text("LD_PRELOAD"), ": ");
    if (!opened.empty()) {
        environment.prepend_preload(opened);
    }
    if (!audited) {
        environment.unset("LD_AUDIT");
    }
    // As ldd does: unlike --list it goes on where a library is missing.
    environment.set("LD_TRACE_LOADED_OBJECTS", "1");
    environment.set("LD_DEBUG", "libs,files");
    environment.set("LD_DEBUG_OUTPUT", (folder.path() / "debug").string());
    SLIMWIRE_TRY_ASSIGN(const Captured listed,
                        run_captured({loader, fs::absolute(file.path).string()}, environment,
                                     kLoaderSeconds, true));
    const std::map<std::string, Search> searches = read_debug_output(folder.path());
    LoadPlan plan;
    plan.program = file.path;
    for (const std::string& line : split_list(listed.output, "\n")) {
        if (line.find(" => ") == std::string::npos && line.find(" (0x") == std::string::npos) {
            continue;  // "statically linked": it needs nothing
        }
        LoadedObject object = read_list_line(line);
        if (object.path == loader || object.path.string().starts_with("linux-vdso")) {
            continue;
        }
        for (const std::string& key : {object.name, object.path.string()}) {
            if (const auto search = searches.find(key); search != searches.end()) {
                object.requested_by = search->second.requested_by;
                if (object.found_by.empty() && !object.path.empty()) {
                    object.found_by = search->second.found_by;
                }
            }
            if (std::count(preloads.begin(), preloads.end(), key) != 0) {
                object.requested_by = object.found_by = "LD_PRELOAD";
            }
        }
        plan.objects.push_back(std::move(object));
    }
    return plan;
}

bool holds_nccl(const fs::path& file, const LoadPlan& plan) {
    // With its final zero: other names only begin so.
    constexpr std::string_view kFunction("ncclAllReduce", sizeof "ncclAllReduce");
    return plan.find("libnccl.so") == nullptr && file_contains(file, kFunction) &&
           !file_contains(file, kNcclLibraryText);
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
