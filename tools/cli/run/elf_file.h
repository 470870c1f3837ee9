// The head of an ELF file: which machine it is for, which loader it asks for, what it keeps out.
// What that loader makes of it, the loader is asked (loader_search.h). Used by `doctor` and by the
// checks of `run`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "codecs/base/status.h"

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

}  // namespace slimwire::cli
