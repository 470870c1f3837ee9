#include "tools/cli/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "codecs/base/own_machine.h"

namespace slimwire::cli {
namespace {

constexpr std::string_view kProbe = "ncclAllReduce";
constexpr std::string_view kLibraryText = "libnccl.so";

// A read-only mapping whose every access is checked.
class Image {
  public:
    static Result<Image> open(const std::filesystem::path& path) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            return Status(
                errno == ENOENT || errno == ENOTDIR ? Code::kNotFound : Code::kSystemError,
                fmt::format("{}: {}", path.string(), std::strerror(errno)));
        }
        struct stat info {};
        void* data = nullptr;
        size_t size = 0;
        if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
            size = static_cast<size_t>(info.st_size);
            data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
        }
        ::close(fd);
        if (data == nullptr || data == MAP_FAILED) {
            return Status(Code::kUnsupported, fmt::format("{}: not an ELF file", path.string()));
        }
        return Image(static_cast<const char*>(data), size);
    }
    Image(Image&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
    Image(const Image&) = delete;
    Image& operator=(const Image&) = delete;
    Image& operator=(Image&&) = delete;
    ~Image() {
        if (data_ != nullptr) {
            ::munmap(const_cast<char*>(data_), size_);
        }
    }

    template <class T>
    [[nodiscard]] std::optional<T> at(uint64_t offset) const {
        if (offset > size_ || size_ - offset < sizeof(T)) {
            return std::nullopt;
        }
        T value;
        std::memcpy(&value, data_ + offset, sizeof value);
        return value;
    }
    // The zero-terminated text at `offset`; empty when it lies outside the file.
    [[nodiscard]] std::string text(uint64_t offset) const {
        if (offset >= size_) {
            return {};
        }
        return {data_ + offset, ::strnlen(data_ + offset, size_ - offset)};
    }
    [[nodiscard]] bool equals(uint64_t offset, std::string_view word) const {
        return offset < size_ && size_ - offset > word.size() &&
               std::memcmp(data_ + offset, word.data(), word.size()) == 0 &&
               data_[offset + word.size()] == '\0';
    }
    [[nodiscard]] bool contains(std::string_view word) const {
        return ::memmem(data_, size_, word.data(), word.size()) != nullptr;
    }

  private:
    Image(const char* data, size_t size) : data_(data), size_(size) {}
    const char* data_;
    size_t size_;
};

// File offset of a virtual address, by the loadable segments.
std::optional<uint64_t> file_offset(const Image& image,
                                    const Elf64_Ehdr& header,
                                    uint64_t address) {
    for (int i = 0; i < header.e_phnum; ++i) {
        const auto segment =
            image.at<Elf64_Phdr>(header.e_phoff + static_cast<uint64_t>(i) * sizeof(Elf64_Phdr));
        if (segment && segment->p_type == PT_LOAD && address >= segment->p_vaddr &&
            address - segment->p_vaddr < segment->p_filesz) {
            return segment->p_offset + (address - segment->p_vaddr);
        }
    }
    return std::nullopt;
}

void read_dynamic(const Image& image,
                  const Elf64_Ehdr& header,
                  const Elf64_Phdr& segment,
                  ElfFile* file) {
    file->dynamic = true;
    uint64_t strings = 0;
    std::vector<std::pair<int64_t, uint64_t>> entries;
    for (uint64_t offset = 0; offset + sizeof(Elf64_Dyn) <= segment.p_filesz;
         offset += sizeof(Elf64_Dyn)) {
        const auto entry = image.at<Elf64_Dyn>(segment.p_offset + offset);
        if (!entry || entry->d_tag == DT_NULL) {
            break;
        }
        entries.emplace_back(entry->d_tag, entry->d_un.d_val);
        if (entry->d_tag == DT_STRTAB) {
            strings = file_offset(image, header, entry->d_un.d_ptr).value_or(0);
        }
    }
    if (strings == 0) {
        return;
    }
    for (const auto& [tag, value] : entries) {
        if (tag == DT_NEEDED) {
            file->needed.push_back(image.text(strings + value));
        } else if (tag == DT_SONAME) {
            file->soname = image.text(strings + value);
        } else if (tag == DT_RPATH) {
            file->rpath = image.text(strings + value);
        } else if (tag == DT_RUNPATH) {
            file->runpath = image.text(strings + value);
            file->has_runpath = true;
        } else if (tag == DT_SYMBOLIC || (tag == DT_FLAGS && (value & DF_SYMBOLIC) != 0)) {
            file->symbolic = true;
        } else if (tag == DT_FLAGS_1 && (value & DF_1_PIE) != 0) {
            file->executable = true;
        }
    }
}

void read_symbols(const Image& image, const Elf64_Ehdr& header, ElfFile* file) {
    for (int i = 0; i < header.e_shnum; ++i) {
        const auto section =
            image.at<Elf64_Shdr>(header.e_shoff + static_cast<uint64_t>(i) * sizeof(Elf64_Shdr));
        if (!section || (section->sh_type != SHT_DYNSYM && section->sh_type != SHT_SYMTAB)) {
            continue;
        }
        const auto strings = image.at<Elf64_Shdr>(
            header.e_shoff + static_cast<uint64_t>(section->sh_link) * sizeof(Elf64_Shdr));
        if (!strings) {
            continue;
        }
        for (uint64_t offset = 0; offset + sizeof(Elf64_Sym) <= section->sh_size;
             offset += sizeof(Elf64_Sym)) {
            const auto symbol = image.at<Elf64_Sym>(section->sh_offset + offset);
            if (!symbol) {
                break;
            }
            if (!image.equals(strings->sh_offset + symbol->st_name, kProbe)) {
                continue;
            }
            const bool defined = symbol->st_shndx != SHN_UNDEF;
            if (section->sh_type == SHT_DYNSYM) {
                file->exports_nccl = file->exports_nccl || defined;
                file->imports_nccl = file->imports_nccl || !defined;
            }
            file->contains_nccl = file->contains_nccl || defined;
        }
    }
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
    Result<Image> opened = Image::open(path);
    if (!opened.ok()) {
        return opened.status();
    }
    const Image& image = opened.value();
    struct Ident {
        unsigned char bytes[EI_NIDENT];
    };
    const auto start = image.at<Ident>(0);
    if (!start || std::memcmp(start->bytes, ELFMAG, SELFMAG) != 0) {
        return Status(Code::kUnsupported, fmt::format("{}: not an ELF file", path.string()));
    }
    ElfFile file;
    file.path = path;
    file.elf_class = start->bytes[EI_CLASS];
    if (file.elf_class != ELFCLASS64 || start->bytes[EI_DATA] != ELFDATA2LSB) {
        // e_type and e_machine stand at the same place in both classes.
        const auto machine = image.at<uint16_t>(offsetof(Elf32_Ehdr, e_machine));
        file.machine = machine.value_or(0);
        return file;
    }
    const auto header = image.at<Elf64_Ehdr>(0);
    if (!header) {
        return Status(Code::kInvalidArgument,
                      fmt::format("{}: damaged: ends inside the ELF header", path.string()));
    }
    file.machine = header->e_machine;
    file.type = header->e_type;
    file.executable = header->e_type == ET_EXEC;
    if (header->e_phnum > 0 && header->e_phentsize != sizeof(Elf64_Phdr)) {
        return Status(Code::kInvalidArgument,
                      fmt::format("{}: damaged: program headers of {} bytes instead of {}",
                                  path.string(), header->e_phentsize, sizeof(Elf64_Phdr)));
    }
    for (int i = 0; i < header->e_phnum; ++i) {
        const auto segment =
            image.at<Elf64_Phdr>(header->e_phoff + static_cast<uint64_t>(i) * sizeof(Elf64_Phdr));
        if (!segment) {
            return Status(Code::kInvalidArgument,
                          fmt::format("{}: damaged: program header {} lies outside the file",
                                      path.string(), i));
        }
        if (segment->p_type == PT_INTERP) {
            file.interpreter = image.text(segment->p_offset);
        } else if (segment->p_type == PT_DYNAMIC) {
            read_dynamic(image, *header, *segment, &file);
        }
    }
    if (header->e_shentsize == sizeof(Elf64_Shdr)) {
        read_symbols(image, *header, &file);
    }
    file.names_nccl_library = image.contains(kLibraryText);
    return file;
}

}  // namespace slimwire::cli
