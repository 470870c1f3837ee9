#include "tools/emulator/nccl/plugins/plugin_library.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
long nccl_env_number(const char* name, long otherwise) noexcept {
    const char* text = getenv(name);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char* end = nullptr;
    const long value = strtol(text, &end, 0);
    if (end == text || *end != '\0') {
        log_info("invalid value '%s' of %s: using %ld", text, name, otherwise);
        return otherwise;
    }
    return value;
}

bool PluginLibrary::try_open(const std::string& file) {
    constexpr char kStatic[] = "STATIC_PLUGIN";
    program_ = strncasecmp(file.c_str(), kStatic, file.size()) == 0;
    handle_ = dlopen(program_ ? nullptr : file.c_str(), RTLD_NOW | RTLD_LOCAL);
    name_ = file;
    return handle_ != nullptr;
}

PluginLibrary PluginLibrary::open(const char* kind, const std::string& name) {
    PluginLibrary library;
    const std::string prefix = std::string("libnccl-") + kind;
    const std::string first = name.empty() ? prefix + ".so" : name;
    if (library.try_open(first)) {
        return library;
    }
    log_info("%s plugin %s: %s", kind, first.c_str(), dlerror());
    const std::string_view text = name;
    const bool is_library = text.starts_with("lib") && text.ends_with(".so");
    if (!name.empty() && text.find('/') == std::string_view::npos && !is_library) {
        const std::string second = prefix + "-" + name + ".so";
        if (library.try_open(second)) {
            return library;
        }
        log_info("%s plugin %s: %s", kind, second.c_str(), dlerror());
    }
    return {};
}

PluginLibrary::PluginLibrary(PluginLibrary&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      name_(std::move(other.name_)),
      program_(other.program_) {}

PluginLibrary& PluginLibrary::operator=(PluginLibrary&& other) noexcept {
    if (this != &other) {
        close();
        handle_ = std::exchange(other.handle_, nullptr);
        name_ = std::move(other.name_);
        program_ = other.program_;
    }
    return *this;
}

PluginLibrary PluginLibrary::again() const {
    PluginLibrary library;
    if (is_open()) {
        (void)library.try_open(name_);
    }
    return library;
}

void* PluginLibrary::symbol(const std::string& symbol) const noexcept {
    return handle_ != nullptr ? dlsym(handle_, symbol.c_str()) : nullptr;
}

void PluginLibrary::close() noexcept {
    if (handle_ != nullptr) {
        dlclose(handle_);
        handle_ = nullptr;
    }
}

void plugin_log(
    net::LogLevel level, unsigned long, const char* file, int line, const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (level <= net::kLogWarn) {
        log_warn("%s:%d %s", file, line, text);
    } else if (level == net::kLogInfo) {
        log_info("%s:%d %s", file, line, text);
    }
}

}  // namespace slimwire::emu
