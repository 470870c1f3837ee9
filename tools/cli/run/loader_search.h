// The head of an ELF file: which machine it is for, which loader it asks for, what it keeps out.
// And what that loader makes of it. Used by `doctor` and by the checks of `run`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"
#include "tools/cli/common/environment.h"

namespace slimwire::cli {

struct ElfFile {
    std::filesystem::path path;
    int elf_class = 0;        // ELFCLASS32, ELFCLASS64
    uint16_t machine = 0;     // EM_*
    std::string interpreter;  // empty: a library or a static program
    uint64_t tls_bytes = 0;   // of thread-local data, with its alignment
};

// "x86-64", "aarch64", ... or "machine <number>"; " 32-bit" is added for that class.
[[nodiscard]] std::string architecture_name(int elf_class, uint16_t machine);
// Class and machine of this program.
[[nodiscard]] bool same_architecture(const ElfFile& file);

// kNotFound: no such file; kUnsupported: not an ELF file; kInvalidArgument: cut off.
Result<ElfFile> read_elf(const std::filesystem::path& path);

// Whether it has rights of its owner's that this user lacks (setuid, setgid, capabilities): the
// loader takes no hook of the environment's into such a program.
[[nodiscard]] bool gains_rights(const std::filesystem::path& program);

// Searches the whole file for `text`.
[[nodiscard]] bool file_contains(const std::filesystem::path& path, std::string_view text);

// The search asks the dynamic loader (glibc's ld.so) which libraries it would map for a program,
// and how it finds each: LD_TRACE_LOADED_OBJECTS and LD_DEBUG, in the command's environment. None
// of the program runs.

// A file with this text opens NCCL at run time, unless it needs it.
inline constexpr std::string_view kNcclLibraryText = "libnccl.so";

struct LoadedObject {
    std::string name;            // as requested
    std::filesystem::path path;  // empty: not found
    std::string requested_by;    // path of the object that needs it; "LD_PRELOAD"
    // Through what it was found: "path", "LD_PRELOAD", "rpath of X", "LD_LIBRARY_PATH",
    // "runpath of X", "ld.so.cache", "default folder"; empty for a missing one.
    std::string found_by;
};

struct LoadPlan {
    std::filesystem::path program;
    std::vector<LoadedObject> objects;  // in the loader's order, program and loader not included

    // The first whose name begins so, "libnccl.so"; null: none.
    [[nodiscard]] const LoadedObject* find(const std::string& begin) const;
};

// `file` is a program or a library of this machine. `opened`: a library that is listed, too, where
// dlopen of that name from the program would lead. `audited`: LD_AUDIT of the environment has its
// say. An error when the loader did not answer.
Result<LoadPlan> list_libraries(const ElfFile& file,
                                Environment environment,
                                const std::string& opened = {},
                                bool audited = false);

// NCCL is linked into `file` statically: it names a function of NCCL, but `plan`, which is of a
// program or library that loads it, has no libnccl, and it names none to open.
[[nodiscard]] bool holds_nccl(const std::filesystem::path& file, const LoadPlan& plan);

// The executable that `command` names, by PATH of `environment`; kNotFound, or kSystemError when it
// may not be executed.
Result<std::filesystem::path> find_command(const std::string& command,
                                           const Environment& environment);

}  // namespace slimwire::cli
