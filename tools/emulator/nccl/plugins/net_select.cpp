#include "tools/emulator/nccl/plugins/net_select.h"

#include <strings.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/net/abi/net.h"
#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
namespace {

// A table of version 11 or 12, which differ in the properties alone.
struct Table {
    const net::NetV11* calls = nullptr;  // null: the library exports none
    int version = 0;
};

Table newest_table(const PluginLibrary& library) {
    if (const void* const v12 = library.symbol(net::kNetPluginSymbolV12); v12 != nullptr) {
        return {static_cast<const net::NetV11*>(v12), 12};
    }
    return {static_cast<const net::NetV11*>(library.symbol(net::kNetPluginSymbolV11)), 11};
}

template <class Properties>
bool read_card(ncclResult_t (*get)(int device, Properties* properties), int device, NetCard* card) {
    Properties from{};
    if (get(device, &from) != ncclSuccess) {
        return false;
    }
    *card = {from.speed_mbps, from.max_p2p_bytes, from.device_type};
    return true;
}

constexpr size_t kMaxPlugins = 14;

enum class State { kDisabled, kLoadFailed, kLoadReady, kInitReady, kEnabled };

struct Plugin {
    std::string name;
    State state = State::kLoadReady;
    PluginLibrary library;
    Table table;
    int devices = 0;
    long users = 0;
};

struct Plugins {
    std::mutex mutex;
    bool listed = false;
    std::vector<Plugin> list;
};

Plugins& plugins() {
    static auto* const all = new Plugins;  // communicators may outlive static destructors
    return *all;
}

void read_list(Plugins& all) {
    const char* variable = getenv("NCCL_NET_PLUGIN");
    std::string list = variable != nullptr ? variable : "libnccl-net.so";
    const long first_users = nccl_env_number("NCCL_NET_PLUGIN_REF_COUNT", 0);
    while (!list.empty() && strcasecmp(list.c_str(), "none") != 0) {
        const size_t comma = list.find(',');
        const std::string entry = list.substr(0, comma);
        list = comma == std::string::npos ? "" : list.substr(comma + 1);
        if (entry.empty()) {
            continue;
        }
        if (all.list.size() == kMaxPlugins) {
            log_info("NCCL_NET_PLUGIN lists more than %zu plugins: ignoring the rest", kMaxPlugins);
            break;
        }
        all.list.emplace_back();
        all.list.back().name = entry;
        all.list.back().users = first_users;
    }
    all.listed = true;
}

void load(Plugin& plugin) {
    plugin.state = State::kLoadFailed;
    plugin.library = PluginLibrary::open("net", plugin.name);
    if (!plugin.library.is_open()) {
        return;
    }
    plugin.table = newest_table(plugin.library);
    if (plugin.table.calls == nullptr) {
        log_info("net plugin %s is unsupported: it exports no table of a known version",
                 plugin.library.name().c_str());
        plugin.library.close();
        return;
    }
    log_info("net plugin %s: loaded '%s' (v%d)", plugin.library.name().c_str(),
             plugin.table.calls->name, plugin.table.version);
    plugin.state = State::kInitReady;
}

// Whether the plugin can be used; `out` has its context then.
bool initialise(Plugin& plugin, uint64_t comm, const CommSettings& settings, AssignedNet* out) {
    const net::NetV11& table = *plugin.table.calls;
    out->table = &table;
    out->version = plugin.table.version;
    net::NetCommConfigV11 config{settings.traffic_class};
    bool ok = table.init(&out->context, comm, &config, plugin_log, nullptr) == ncclSuccess;
    if (ok && plugin.state == State::kInitReady) {
        ok = table.devices(&plugin.devices) == ncclSuccess && plugin.devices > 0;
    }
    NetCard card;
    if (ok && (!out->card(0, &card) || card.device_type != net::kNetDeviceHost)) {
        log_info("net plugin %s wants device code that the emulator has not", table.name);
        ok = false;
    }
    if (!ok) {
        log_info("net plugin %s failed to initialize", table.name);
        if (table.finalize != nullptr) {
            (void)table.finalize(out->context);
        }
        plugin.state = State::kDisabled;
        return false;
    }
    plugin.state = State::kEnabled;
    out->devices = plugin.devices;
    return true;
}

void disable_others(Plugins& all, size_t chosen) {
    for (size_t i = 0; i < all.list.size(); ++i) {
        Plugin& plugin = all.list[i];
        if (i != chosen && plugin.state != State::kDisabled && plugin.users == 0) {
            plugin.state = State::kDisabled;
            plugin.library.close();
        }
    }
}

bool is_builtin(const std::string& name) {
    const std::array names = {"", "IB", "Socket", "Emulator"};
    for (const char* known : names) {
        if (strcasecmp(name.c_str(), known) == 0) {
            return true;
        }
    }
    return false;
}

}  // namespace

bool AssignedNet::card(int device, NetCard* card) const {
    return version == 12 ? read_card(reinterpret_cast<const net::NetV12*>(table)->get_properties,
                                     device, card)
                         : read_card(table->get_properties, device, card);
}

CommSettings comm_settings(const ncclConfig_t* config, CommSettings inherited) {
    CommSettings result = std::move(inherited);
    if (config != nullptr) {
        if (config->netName != nullptr) {
            result.net_name = config->netName;
        }
        if (config->trafficClass != NCCL_CONFIG_UNDEF_INT) {
            result.traffic_class = config->trafficClass;
        }
        if (config->splitShare != NCCL_CONFIG_UNDEF_INT) {
            result.split_share = config->splitShare != 0;
        }
    }
    if (const char* shares = getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES"); shares != nullptr) {
        result.split_share = atoi(shares) != 0;
    }
    if (const char* forced = getenv("NCCL_NET"); forced != nullptr && *forced != '\0') {
        result.net_name = forced;
    }
    return result;
}

Result<AssignedNet> assign_net(uint64_t comm, const CommSettings& settings) {
    Plugins& all = plugins();
    const std::lock_guard lock(all.mutex);
    if (!all.listed) {
        read_list(all);
    }
    for (size_t i = 0; i < all.list.size(); ++i) {
        Plugin& plugin = all.list[i];
        if (plugin.state == State::kLoadReady) {
            load(plugin);
        }
        if (plugin.state < State::kInitReady) {
            continue;
        }
        const char* name = plugin.table.calls->name;
        if (!settings.net_name.empty() && strcasecmp(settings.net_name.c_str(), name) != 0) {
            log_info("net plugin %s is '%s', NCCL_NET wants '%s'", plugin.library.name().c_str(),
                     name, settings.net_name.c_str());
            continue;
        }
        AssignedNet net;
        if (initialise(plugin, comm, settings, &net)) {
            net.plugin = static_cast<int>(i);
            ++plugin.users;
            disable_others(all, i);
            log_info("net plugin %s: using '%s'", plugin.library.name().c_str(), name);
            return net;
        }
    }
    if (!is_builtin(settings.net_name)) {
        return Status(Code::kInvalidUsage, "no network is named '" + settings.net_name +
                                               "' (NCCL_NET, NCCL_NET_PLUGIN)");
    }
    return AssignedNet{};
}

void release_net(const AssignedNet& net) noexcept {
    if (net.plugin < 0) {
        return;
    }
    Plugins& all = plugins();
    const std::lock_guard lock(all.mutex);
    Plugin& plugin = all.list[static_cast<size_t>(net.plugin)];
    if (net.table->finalize != nullptr) {
        (void)net.table->finalize(net.context);
    }
    if (--plugin.users == 0) {
        log_info("unloading net plugin %s", plugin.library.name().c_str());
        plugin.library.close();
        plugin.table = {};
        plugin.state = State::kLoadReady;
    }
}

PluginLibrary net_plugin_library() {
    Plugins& all = plugins();
    const std::lock_guard lock(all.mutex);
    for (const Plugin& plugin : all.list) {
        if (plugin.state == State::kEnabled) {
            return plugin.library.again();
        }
    }
    return {};
}

}  // namespace slimwire::emu
