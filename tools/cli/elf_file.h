// What the dynamic loader would see in a file: architecture, interpreter, needed libraries, search
// paths, and which NCCL symbols it defines or wants. A small reader over <elf.h> that never trusts
// an offset of the file; 64-bit little-endian files are read, others are only named. Used by
// `doctor` and by the checks of `run`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

struct ElfFile {
    std::filesystem::path path;
    int elf_class = 0;        // ELFCLASS32, ELFCLASS64
    uint16_t machine = 0;     // EM_*
    uint16_t type = 0;        // ET_EXEC, ET_DYN
    std::string interpreter;  // empty: a library or a static program
    std::string soname;
    std::vector<std::string> needed;
    std::string
        rpath;  // as written, $ORIGIN not expanded; ignored by the loader when runpath is set
    std::string runpath;
    bool has_runpath = false;
    bool dynamic = false;     // has a dynamic section
    bool executable = false;  // a program: of type ET_EXEC, or marked as one (PIE)
    // The NCCL function that slimwire must catch, "ncclAllReduce", seen from this file:
    bool exports_nccl = false;        // defined in its dynamic symbols
    bool contains_nccl = false;       // defined in its full symbol table: linked in statically
    bool imports_nccl = false;        // undefined in its dynamic symbols
    bool names_nccl_library = false;  // the text "libnccl.so" stands in it: probably dlopen'ed
    // A library opened with dlopen(..., RTLD_DEEPBIND) or linked -Bsymbolic keeps its own symbols.
    bool symbolic = false;
};

// "x86-64", "aarch64", ... or "machine <number>"; " 32-bit" is added for that class.
[[nodiscard]] std::string architecture_name(int elf_class, uint16_t machine);
// Class and machine of this program.
[[nodiscard]] bool same_architecture(const ElfFile& file);

// kNotFound: no such file; kUnsupported: not an ELF file; kInvalidArgument: damaged, with what is
// wrong.
Result<ElfFile> read_elf(const std::filesystem::path& path);

}  // namespace slimwire::cli
