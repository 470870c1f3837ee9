// How libraries of plugins are found and opened, as NCCL 2.28 does it, and NCCL's settings that are
// numbers or lists. Thread contract: any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/net/abi/net_types.h"

namespace slimwire::emu {

// One of NCCL's settings as a number; `otherwise` where it is not set or none. NCCL's numbers may
// be written as C does.
[[nodiscard]] long nccl_env_number(const char* name, long otherwise) noexcept;
// The entries of one of NCCL's lists by comma that are not empty.
[[nodiscard]] std::vector<std::string> list_entries(std::string_view list);

// A plugin's library, open for as long as a copy of this lives.
class PluginLibrary {
  public:
    // `kind` is "net" or "tuner". `name` is tried as it stands, then, where it is neither a path
    // nor lib*.so, as libnccl-<kind>-<name>.so; an empty one is libnccl-<kind>.so. What is not
    // found is not open, and an INFO line.
    static PluginLibrary open(const char* kind, const std::string& name);

    [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    // Null where the library does not export it.
    [[nodiscard]] void* symbol(const char* symbol) const noexcept;
    void close() noexcept { handle_.reset(); }

  private:
    bool try_open(const char* kind, const std::string& file);

    std::shared_ptr<void> handle_;
    std::string name_;
};

// The logger handed to plugins: NCCL_DEBUG's lines.
void plugin_log(
    net::LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);

}  // namespace slimwire::emu
