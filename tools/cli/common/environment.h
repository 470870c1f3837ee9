// The environment of a command that is about to be started: a copy of ours with changes. Kept as a
// sorted map so that tests compare it and the change list can be printed; no setenv in this
// process.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

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

[[nodiscard]] std::vector<std::string> split_list(std::string_view text,
                                                  std::string_view separators);

}  // namespace slimwire::cli
