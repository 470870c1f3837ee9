// Predicts what the dynamic loader (glibc's ld.so) would map for a program, without running any of
// it: LD_PRELOAD, DT_RPATH of the requester and of those who loaded it, LD_LIBRARY_PATH,
// DT_RUNPATH, the cache of ldconfig, the default folders; hardware capability folders and $ORIGIN
// included. Used by `doctor` and by the checks of `run`. Tests compare it with `ld.so --list`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/cli/elf_file.h"
#include "tools/cli/environment.h"

namespace slimwire::cli {

struct LoadedObject {
    std::string name;            // as requested
    std::filesystem::path path;  // empty: not found
    std::string requested_by;    // path of the object that needs it; "LD_PRELOAD"
    // Through what it was found: "path", "LD_PRELOAD", "rpath of X", "LD_LIBRARY_PATH",
    // "runpath of X", "ld.so.cache", "default folder"; for a missing one why others were skipped.
    std::string found_by;
    ElfFile elf;      // valid when path is not empty
    int loader = -1;  // index of the requester in the list; -1: the program or a preload
};

struct LoadPlan {
    ElfFile program;
    std::vector<LoadedObject> objects;  // in the loader's order, the program itself not included

    [[nodiscard]] const LoadedObject* find(const std::string& soname) const;
};

// `program` must be a dynamic ELF file.
[[nodiscard]] LoadPlan plan_load(const ElfFile& program, const Environment& environment);

// Where dlopen(`name`) from the program itself would lead; path empty when nowhere.
[[nodiscard]] LoadedObject plan_dlopen(const LoadPlan& plan,
                                       const std::string& name,
                                       const Environment& environment);

// The executable that `command` names, by PATH of `environment`; kNotFound, or kSystemError when it
// may not be executed.
Result<std::filesystem::path> find_command(const std::string& command,
                                           const Environment& environment);

}  // namespace slimwire::cli
