// The env plugin: the first library that NCCL loads. All of NCCL's settings are asked of it.
#include <strings.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "plugin/net/abi/env.h"
#include "tools/emulator/nccl/log.h"
#include "tools/emulator/nccl/plugin_library.h"

namespace slimwire::emu {
namespace {

std::atomic<const net::EnvV1*> g_table{nullptr};

// For the life of the process: pointers to values stay valid.
PluginLibrary& library() {
    static auto* const library = new PluginLibrary;
    return *library;
}

// At exit, when nobody asks any more.
void finalize() {
    const net::EnvV1* table = g_table.exchange(nullptr);
    if (table != nullptr && table->finalize != nullptr) {
        (void)table->finalize();
    }
}

void load() {
    const char* name = getenv("NCCL_ENV_PLUGIN");
    if (name != nullptr && strcasecmp(name, "none") == 0) {
        return;
    }
    library() = PluginLibrary::open("env", name != nullptr ? name : "");
    if (!library().is_open()) {
        return;
    }
    const auto* table = static_cast<const net::EnvV1*>(library().symbol(net::kEnvPluginSymbolV1));
    if (table == nullptr) {
        log_info("env plugin %s is unsupported: no %s", library().name().c_str(),
                 net::kEnvPluginSymbolV1);
        library().close();
        return;
    }
    if (table->init(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_SUFFIX) != ncclSuccess) {
        log_warn("env plugin %s failed to initialize", table->name);
        library().close();
        return;
    }
    g_table = table;
    (void)atexit(finalize);
    reset_verbosity();  // NCCL_DEBUG may be its, too
    log_info("env plugin %s: using '%s'", library().name().c_str(), table->name);
}

}  // namespace

void load_env_plugin() {
    static std::once_flag once;
    std::call_once(once, load);
}

const char* nccl_env(const char* name) noexcept {
    const net::EnvV1* table = g_table;
    return table != nullptr ? table->get_env(name) : getenv(name);
}

}  // namespace slimwire::emu
