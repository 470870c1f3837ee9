// How libraries of plugins are found and opened, as NCCL 2.28 does it, and NCCL's settings that are
// numbers. Thread contract: any thread.
#pragma once

#include <string>

#include "plugin/net/abi/net_types.h"

namespace slimwire::emu {

// One of NCCL's settings as a number; `otherwise` where it is not set or none. NCCL's numbers may
// be written as C does.
[[nodiscard]] long nccl_env_number(const char* name, long otherwise) noexcept;

// A plugin's library, open for as long as this lives.
class PluginLibrary {
  public:
    PluginLibrary() = default;
    // `kind` is "net" or "tuner". `name` is tried as it stands, then, where it is neither a path
    // nor lib*.so, as libnccl-<kind>-<name>.so; an empty one is libnccl-<kind>.so; STATIC_PLUGIN is
    // the program itself. What is not found is not open, and an INFO line.
    static PluginLibrary open(const char* kind, const std::string& name);
    ~PluginLibrary() { close(); }
    PluginLibrary(PluginLibrary&& other) noexcept;
    PluginLibrary& operator=(PluginLibrary&& other) noexcept;
    // The same library once more.
    [[nodiscard]] PluginLibrary again() const;

    [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    // Null where the library does not export it.
    [[nodiscard]] void* symbol(const std::string& symbol) const noexcept;
    void close() noexcept;

  private:
    bool try_open(const std::string& file);

    void* handle_ = nullptr;
    std::string name_;
    bool program_ = false;
};

// The logger handed to plugins: NCCL_DEBUG's lines.
void plugin_log(
    net::LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);

}  // namespace slimwire::emu
