// The environment of a command that is about to be started: a copy of ours with changes. Kept as a
// sorted map so that tests compare it and the change list can be printed; no setenv in this
// process.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

class Environment {
  public:
    Environment() = default;
    // Copy of this process's environment.
    static Environment current();

    void set(const std::string& name, std::string value) { values_[name] = std::move(value); }
    void unset(const std::string& name) { values_.erase(name); }
    // Null when absent; valid until the next change.
    [[nodiscard]] const char* get(const std::string& name) const;
    // Empty when absent.
    [[nodiscard]] std::string text(const std::string& name) const;
    // Puts `item` first in a colon separated list and keeps what was there. An item that is already
    // in the list moves to the front.
    void prepend(const std::string& name, const std::string& item);
    // As prepend for LD_PRELOAD, whose items may also be separated by spaces.
    void prepend_preload(const std::string& library);

    // Each item of a list becomes what `kept_of` makes of it, and is dropped where that is empty. A
    // list of which nothing is left is unset; one of which nothing changes keeps its text.
    void edit(const std::string& name,
              std::string_view separators,
              const std::function<std::string(const std::string&)>& kept_of);

    [[nodiscard]] const std::map<std::string, std::string>& values() const { return values_; }
    // "NAME=value" strings for execve; valid until the next change. The last element is null.
    [[nodiscard]] std::vector<char*> pointers();

  private:
    std::map<std::string, std::string> values_;
    std::vector<std::string> lines_;
};

// Of each word, and null behind the last one, as exec takes arguments; valid until they change.
[[nodiscard]] std::vector<char*> pointers_to(std::vector<std::string>* words);

[[nodiscard]] std::vector<std::string> split_list(std::string_view text,
                                                  std::string_view separators);

// Where the parts of this slimwire lie, seen from the running executable: beside it in a build tree
// (build/tools/slimwire), or under one prefix in an installation (bin, lib). Nothing is searched
// elsewhere, so a command never mixes two versions.

struct Installation {
    std::filesystem::path executable;  // this program, symbolic links resolved
    std::filesystem::path library;     // libslimwire.so
    std::filesystem::path audit;       // libslimwire-audit.so
    std::filesystem::path net_plugin;  // libnccl-net-slimwire.so
    std::filesystem::path dropin;      // folder of the drop-in libnccl.so.2
    std::filesystem::path emulator;    // folder of the emulator's libnccl.so.2 and libcudart.so.13
    std::filesystem::path helpers;     // folder of slimwire-bench-worker and its companions
    std::filesystem::path stub_nccl;   // folder of the stub libnccl.so.2 of `bench overhead`
};

// Never fails: a part that is not there has an empty path, and who needs it says so.
[[nodiscard]] Installation find_installation();
// As above for an executable at `executable` (tests).
[[nodiscard]] Installation find_installation(const std::filesystem::path& executable);

}  // namespace slimwire::cli
