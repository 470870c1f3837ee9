#include "tools/emulator/nccl/net_select.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "tools/emulator/nccl/log.h"
#include "tools/emulator/nccl/net_ucx.h"

namespace slimwire::emu {
namespace {

bool looks_like_a_library(const std::string& entry) {
    return entry.find('/') != std::string::npos ||
           (entry.rfind("lib", 0) == 0 && entry.find(".so") != std::string::npos);
}

const net::NetV11* table_of(const std::string& entry) {
    void* library = dlopen(entry.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::string file = entry;
    if (library == nullptr && !looks_like_a_library(entry)) {
        file = "libnccl-net-" + entry + ".so";
        library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
        log_info("net plugin %s: %s", entry.c_str(), dlerror());
        return nullptr;
    }
    const auto* table = static_cast<const net::NetV11*>(dlsym(library, net::kNetPluginSymbolV11));
    if (table == nullptr) {
        log_info("net plugin %s has no %s", file.c_str(), net::kNetPluginSymbolV11);
        dlclose(library);
        return nullptr;
    }
    const char* wanted = getenv("NCCL_NET");
    if (wanted != nullptr && *wanted != '\0' && strcasecmp(wanted, table->name) != 0) {
        log_info("net plugin %s is '%s', NCCL_NET wants '%s'", file.c_str(), table->name, wanted);
        dlclose(library);
        return nullptr;
    }
    log_info("net plugin %s: using '%s'", file.c_str(), table->name);
    return table;
}

const net::NetV11* choose() {
    const char* variable = getenv("NCCL_NET_PLUGIN");
    std::string list = variable != nullptr ? variable : "";
    while (!list.empty()) {
        const size_t comma = list.find(',');
        const std::string entry = list.substr(0, comma);
        list = comma == std::string::npos ? "" : list.substr(comma + 1);
        if (entry.empty() || entry == "none") {
            continue;
        }
        if (const net::NetV11* table = table_of(entry); table != nullptr) {
            return table;
        }
    }
    return builtin_net();
}

}  // namespace

const net::NetV11* inter_node_net() {
    static std::mutex mutex;
    static const net::NetV11* chosen = nullptr;
    const std::lock_guard lock(mutex);
    if (chosen == nullptr) {
        chosen = choose();
    }
    return chosen;
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
