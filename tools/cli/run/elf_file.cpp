#include "tools/cli/run/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "codecs/base/descriptor.h"
#include "codecs/base/own_machine.h"

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
    std::string name;
    switch (machine) {
        case EM_X86_64:
            name = "x86-64";
            break;
        case EM_AARCH64:
            name = "aarch64";
            break;
        case EM_386:
            name = "i386";
            break;
        case EM_ARM:
            name = "arm";
            break;
        case EM_PPC64:
            name = "ppc64";
            break;
        case EM_RISCV:
            name = "riscv";
            break;
        default:
            name = fmt::format("machine {}", machine);
    }
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
        return Status(Code::kInvalidArgument,
                      fmt::format("{}: ends inside the ELF header", path.string()));
    }
    if (!same_architecture(elf)) {
        return elf;
    }
    Elf64_Ehdr header{};
    if (!read_at(&file, 0, &header)) {
        return Status(Code::kInvalidArgument,
                      fmt::format("{}: ends inside the ELF header", path.string()));
    }
    const uint64_t size = std::filesystem::file_size(path, error);
    for (int i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment{};
        const bool read =
            read_at(&file, header.e_phoff + static_cast<uint64_t>(i) * sizeof segment, &segment);
        if (!read || (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > size)) {
            return Status(Code::kInvalidArgument,
                          fmt::format("{}: cut short: its segments end beyond its {} bytes",
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

}  // namespace slimwire::cli
