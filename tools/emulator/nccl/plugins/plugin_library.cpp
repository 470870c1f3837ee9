#include "tools/emulator/nccl/plugins/plugin_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

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

std::vector<std::string> list_entries(std::string_view list) {
    std::vector<std::string> entries;
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        if (comma > 0) {
            entries.emplace_back(list.substr(0, comma));
        }
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return entries;
}

bool PluginLibrary::try_open(const char* kind, const std::string& file) {
    name_ = file;
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        log_info("%s plugin %s: %s", kind, file.c_str(), dlerror());
        return false;
    }
    handle_.reset(handle, dlclose);
    return true;
}

PluginLibrary PluginLibrary::open(const char* kind, const std::string& name) {
    PluginLibrary library;
    const std::string prefix = std::string("libnccl-") + kind;
    const bool is_file =
        name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(".so"));
    if (!library.try_open(kind, name.empty() ? prefix + ".so" : name) && !name.empty() &&
        !is_file) {
        (void)library.try_open(kind, prefix + "-" + name + ".so");
    }
    return library;
}

void* PluginLibrary::symbol(const char* symbol) const noexcept {
    return is_open() ? dlsym(handle_.get(), symbol) : nullptr;
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
