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

struct Plugin {
    std::string name;
    bool out = false;  // it failed, or another one was chosen
    PluginLibrary library;
    Table table;
    int devices = 0;  // once it was initialised
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
    for (const std::string& entry :
         list_entries(variable != nullptr ? variable : "libnccl-net.so")) {
        if (strcasecmp(entry.c_str(), "none") != 0) {
            all.list.emplace_back().name = entry;
        }
    }
    all.listed = true;
}

void load(Plugin& plugin) {
    plugin.out = true;
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
    plugin.out = false;
}

// Whether the plugin can be used; `out` has its context then.
bool initialise(Plugin& plugin, uint64_t comm, const CommSettings& settings, AssignedNet* out) {
    const net::NetV11& table = *plugin.table.calls;
    out->table = &table;
    out->version = plugin.table.version;
    net::NetCommConfigV11 config{settings.traffic_class};
    bool ok = table.init(&out->context, comm, &config, plugin_log, nullptr) == ncclSuccess;
    if (ok && plugin.devices == 0) {
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
        plugin.out = true;
        return false;
    }
    out->devices = plugin.devices;
    return true;
}

void disable_others(Plugins& all, size_t chosen) {
    for (size_t i = 0; i < all.list.size(); ++i) {
        Plugin& plugin = all.list[i];
        if (i != chosen && plugin.users == 0) {
            plugin.out = true;
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
        if (!plugin.out && !plugin.library.is_open()) {
            load(plugin);
        }
        if (plugin.out) {
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
        plugin.devices = 0;
    }
}

PluginLibrary net_plugin_library() {
    Plugins& all = plugins();
    const std::lock_guard lock(all.mutex);
    for (const Plugin& plugin : all.list) {
        if (!plugin.out && plugin.devices > 0) {
            return plugin.library;
        }
    }
    return {};
}

}  // namespace slimwire::emu
