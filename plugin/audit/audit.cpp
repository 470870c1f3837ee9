// LD_AUDIT helper: whatever name or path leads a program to NCCL (RPATH, dlopen of a path, ctypes),
// the loader opens slimwire's drop-in (dropin/libnccl.so.2 beside this library) instead, and the
// drop-in's libnccl-real.so is the file that the program would have had. Everything else is left as
// it is; a process that never asks for NCCL sees a comparison a file name, a look at each path that
// it opens and at the dynamic section of each library.
//
// The loader calls these functions under its lock, from the namespace of its own in which this
// library and a second libc live: no allocation, no C++ runtime, no call back into the loader but
// dladdr. rtld-audit(7) describes them.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <initializer_list>

#include "codecs/base/own_machine.h"

namespace {

// Who asks for a file, kept in the loader's cookie of the object.
constexpr uintptr_t kStranger = 0;
constexpr uintptr_t kDropin = 1;      // needs libnccl-real.so
constexpr uintptr_t kInterposer = 2;  // libslimwire.so, preloaded: its NCCL is not ours to choose
constexpr uintptr_t kNccl = 3;        // by its SONAME; never a cookie

constexpr char kRealName[] = "libnccl-real.so";

// Which file is which, over links and spellings.
struct FileId {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const FileId& other) const {
        return device == other.device && inode == other.inode;
    }
};

struct State {
    char own[PATH_MAX] = {};     // this library
    char dropin[PATH_MAX] = {};  // empty: not there, nothing is redirected
    FileId dropin_id;
    char real[PATH_MAX] = {};  // what libnccl-real.so leads to; empty: no NCCL was asked for yet
    FileId real_id;
    unsigned dropins = 0;        // that are mapped; with none the real one is the next asked for
    FileId named_id;             // of SLIMWIRE_NCCL_LIBRARY, under whatever name
    bool named_by_user = false;  // by SLIMWIRE_NCCL_LIBRARY: it stands for every NCCL
    bool complained = false;
    bool warned = false;
};
constinit State g_state;

const char* file_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash != nullptr ? slash + 1 : path;
}

template <size_t N>
bool begins(const char* text, const char (&with)[N]) {
    return strncmp(text, with, N - 1) == 0;
}

// libnccl.so, libnccl.so.2, libnccl.so.2.28.9, libnccl-mine.so.2.30.4; no plugin, no other major
// version.
bool names_nccl(const char* name) {
    static constexpr char kStem[] = "libnccl", kVersion[] = ".so.2";
    if (!begins(name, kStem)) {
        return false;
    }
    const char* rest = name + sizeof(kStem) - 1;
    if (strcmp(rest, ".so") == 0) {
        return true;
    }
    const char* version = strstr(rest, kVersion);
    const char after = version != nullptr ? version[sizeof(kVersion) - 1] : 'x';
    const bool suffix = *rest == '.' || *rest == '-' || *rest == '_';
    const bool plugin = begins(rest, "-net") || begins(rest, "-tuner") ||
                        begins(rest, "-profiler") || begins(rest, "-env");
    return suffix && !plugin && (after == '\0' || after == '.');
}

bool identify(const char* path, FileId* id) {
    struct stat info {};
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
        return false;
    }
    *id = {info.st_dev, info.st_ino};
    return true;
}

// Whether the loader would take this file: it passes over what it cannot read and over other
// architectures, and goes on searching.
bool loadable(const char* path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    Elf64_Ehdr header{};
    const ssize_t got = read(fd, &header, sizeof(header));
    close(fd);
    return got == static_cast<ssize_t>(sizeof(header)) &&
           memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64 &&
           header.e_machine == slimwire::kOwnMachine;
}

// `folder` is a path up to and with its last slash, of `length` characters.
bool join(char (&out)[PATH_MAX], const char* folder, size_t length, const char* name) {
    const size_t more = strlen(name);
    if (length + more >= sizeof(out)) {
        return false;
    }
    memcpy(out, folder, length);
    memcpy(out + length, name, more + 1);
    return true;
}

// A path to the same file in a spelling that no program uses. The loader hands a mapped file to
// whoever asks by the path that it was opened by, and does not ask here again: the real library
// must not be known by a path that programs use.
bool respell(char (&out)[PATH_MAX], const char* path) {
    const char* name = file_name(path);
    char dotted[PATH_MAX];
    return join(dotted, path, static_cast<size_t>(name - path), "././././") &&
           join(out, dotted, strlen(dotted), name);
}

// Once for each flag.
void complain(const char* what,
              const char* path,
              const char* then = "; NCCL is left as it is",
              bool* complained = &g_state.complained) {
    if (*complained) {
        return;
    }
    *complained = true;
    char line[PATH_MAX + 128];
    size_t length = 0;
    for (const char* part : {"slimwire: audit: ", what, path, then, "\n"}) {
        for (; *part != '\0' && length < sizeof(line); ++part) {
            line[length++] = *part;
        }
    }
    (void)!write(STDERR_FILENO, line, length);
}

// Before the program can go to another folder.
void find_paths() {
    const char* named = getenv("SLIMWIRE_NCCL_LIBRARY");
    if (named != nullptr) {
        (void)identify(named, &g_state.named_id);
    }
    Dl_info own{};
    if (dladdr(reinterpret_cast<const void*>(&find_paths), &own) == 0 || own.dli_fname == nullptr ||
        realpath(own.dli_fname, g_state.own) == nullptr) {
        g_state.own[0] = '\0';
    }
}

// Finds the drop-in beside this library, in a build's folders or an installation's.
void find_dropin() {
    const char* path = g_state.own;
    const auto folder = static_cast<size_t>(file_name(path) - path);
    for (const char* place : {"dropin/libnccl.so.2", "slimwire/dropin/libnccl.so.2"}) {
        if (join(g_state.dropin, path, folder, place) &&
            identify(g_state.dropin, &g_state.dropin_id)) {
            return;
        }
    }
    if (!join(g_state.dropin, path, folder, "dropin/libnccl.so.2")) {
        g_state.dropin[0] = '\0';
    }
    complain("there is no ", g_state.dropin);
    g_state.dropin[0] = '\0';
}

// Whether the file stands in a drop-in folder, ours or a copy: its libnccl-real.so is the real one.
bool in_dropin_folder(const char* path) {
    char beside[PATH_MAX];
    struct stat info {};
    return join(beside, path, static_cast<size_t>(file_name(path) - path), kRealName) &&
           stat(beside, &info) == 0;
}

// Settles which file is the real one: the first NCCL that is found and then mapped. A program that
// asks for it with RTLD_NOLOAD, or opens it in vain, does not have it.
bool settle_real(const char* found, const FileId& id) {
    const char* named = getenv("SLIMWIRE_NCCL_LIBRARY");
    if (named != nullptr && *named != '\0') {
        char path[PATH_MAX];
        if (realpath(named, path) == nullptr || !loadable(path) ||
            !identify(path, &g_state.real_id) || !respell(g_state.real, path)) {
            complain("SLIMWIRE_NCCL_LIBRARY is no library of this machine: ", named);
            return false;
        }
        g_state.named_by_user = true;
        return true;
    }
    g_state.real_id = id;
    if (!respell(g_state.real, found)) {
        g_state.real[0] = '\0';
        return false;
    }
    return true;
}

// Whether a path is NCCL's: by its name, by that of the file that it is a link to where the program
// gave the path itself (`asked`), or because SLIMWIRE_NCCL_LIBRARY names the file.
bool leads_to_nccl(const char* path, bool asked) {
    FileId id;
    if (names_nccl(file_name(path)) ||
        (g_state.named_id.inode != 0 && identify(path, &id) && id == g_state.named_id)) {
        return true;
    }
    struct stat info {};
    char target[PATH_MAX];
    return asked && lstat(path, &info) == 0 && S_ISLNK(info.st_mode) &&
           realpath(path, target) != nullptr && names_nccl(file_name(target));
}

// Whether an existing file that leads to NCCL is to be the drop-in instead. A second, other NCCL
// of the process stays what it is: one real library is below slimwire.
bool redirected(const char* path) {
    FileId id;
    if (!loadable(path) || !identify(path, &id)) {
        return false;
    }
    if (g_state.dropin[0] == '\0' && !g_state.complained) {
        find_dropin();
    }
    if (g_state.dropin[0] == '\0' || id == g_state.dropin_id || in_dropin_folder(path)) {
        return false;
    }
    if ((g_state.dropins == 0 || g_state.real[0] == '\0') && !settle_real(path, id)) {
        return false;
    }
    return g_state.named_by_user || id == g_state.real_id;
}

// What an object is and asks for, read from its dynamic section.
uintptr_t kind_of(const link_map* map) {
    uintptr_t kind = kStranger;
    const char* strings = nullptr;
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_STRTAB) {
            // The loader adds the base to it, where it may write there.
            const ElfW(Addr) address = entry->d_un.d_ptr;
            strings = reinterpret_cast<const char*>(address < map->l_addr ? address + map->l_addr
                                                                          : address);
        }
    }
    for (const ElfW(Dyn)* entry = map->l_ld; strings != nullptr && entry->d_tag != DT_NULL;
         ++entry) {
        const char* text = strings + entry->d_un.d_val;
        if (entry->d_tag == DT_NEEDED && strcmp(text, kRealName) == 0) {
            return kDropin;
        }
        if (entry->d_tag == DT_SONAME && strcmp(text, "libslimwire.so") == 0) {
            kind = kInterposer;
        } else if (entry->d_tag == DT_SONAME && strcmp(text, "libnccl.so.2") == 0) {
            kind = kNccl;
        }
    }
    return kind;
}

// An NCCL under a name that tells nobody so would be native in silence.
void warn_of_other_name(const char* path) {
    FileId id;
    const char* name = file_name(path);
    if (!names_nccl(name) && strcmp(name, kRealName) != 0 && identify(path, &id) &&
        !(id == g_state.real_id) && !(id == g_state.named_id)) {
        complain("", path,
                 " is NCCL by its SONAME alone and stays native; SLIMWIRE_NCCL_LIBRARY may name it",
                 &g_state.warned);
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

unsigned la_version(unsigned version) {
    find_paths();
    // What is used here is in every version.
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned la_objopen(link_map* map, Lmid_t, uintptr_t* cookie) {
    const uintptr_t kind = kind_of(map);
    if (kind == kNccl && map->l_name != nullptr) {
        warn_of_other_name(map->l_name);
    }
    *cookie = kind == kNccl ? kStranger : kind;
    g_state.dropins += kind == kDropin ? 1 : 0;
    return 0;  // no symbol is looked at
}

unsigned la_objclose(uintptr_t* cookie) {
    g_state.dropins -= *cookie == kDropin ? 1 : 0;
    return 0;
}

// Called with the name as asked for, then with each file that might be it.
char* la_objsearch(const char* name, uintptr_t* cookie, unsigned how) {
    char* const unchanged = const_cast<char*>(name);
    const uintptr_t asker = cookie != nullptr ? *cookie : kStranger;
    if (asker == kDropin && g_state.real[0] != '\0' && strcmp(name, kRealName) == 0) {
        return g_state.real;
    }
    if (asker != kStranger || file_name(name) == name || !leads_to_nccl(name, how == LA_SER_ORIG) ||
        !redirected(name)) {
        return unchanged;
    }
    return g_state.dropin;
}

}  // extern "C"
#pragma GCC visibility pop
