#include "tools/emulator/nccl/plugins/net_select.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/net/abi/net_v12.h"
#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
namespace {

using net::NetV11;
using net::NetV12;

// A table has no place for a pointer of ours.
const NetV12* g_inner = nullptr;
NetV11 g_table = {};

ncclResult_t get_properties(int device, net::NetPropertiesV11* out) {
    net::NetPropertiesV12 from{};
    if (const ncclResult_t result = g_inner->get_properties(device, &from); result != ncclSuccess) {
        return result;
    }
    *out = {};
    out->name = from.name;
    out->pci_path = from.pci_path;
    out->guid = from.guid;
    out->ptr_support = from.ptr_support;
    out->reg_is_global = from.reg_is_global;
    out->force_flush = from.force_flush;
    out->speed_mbps = from.speed_mbps;
    out->port = from.port;
    out->latency_us = from.latency_us;
    out->max_comms = from.max_comms;
    out->max_recvs = from.max_recvs;
    out->device_type = from.device_type;
    out->device_version = from.device_version;
    out->max_p2p_bytes = from.max_p2p_bytes;
    out->max_coll_bytes = from.max_coll_bytes;
    out->max_multi_request_size = 1;
    const int devices = std::clamp(from.virtual_devices.count, 0, net::kNetMaxDevsPerNic);
    out->virtual_devices.count = devices;
    std::copy_n(from.virtual_devices.devices, devices, out->virtual_devices.devices);
    return ncclSuccess;
}

const NetV11* as_v11(const NetV12& of) {
    g_inner = &of;
    g_table = {};
    g_table.name = of.name;
    g_table.init = of.init;
    g_table.devices = of.devices;
    g_table.get_properties = get_properties;
    g_table.listen = of.listen;
    g_table.connect = of.connect;
    g_table.accept = of.accept;
    g_table.reg_mr = of.reg_mr;
    g_table.reg_mr_dma_buf = of.reg_mr_dma_buf;
    g_table.dereg_mr = of.dereg_mr;
    g_table.isend = of.isend;
    g_table.irecv = of.irecv;
    g_table.iflush = of.iflush;
    g_table.test = of.test;
    g_table.close_send = of.close_send;
    g_table.close_recv = of.close_recv;
    g_table.close_listen = of.close_listen;
    g_table.get_device_mr = of.get_device_mr;
    g_table.irecv_consumed = of.irecv_consumed;
    g_table.finalize = of.finalize;
    g_table.set_net_attr = of.set_net_attr;
    return &g_table;
}

// The newest version of NCCL's network table in a library, as version 11, which is what the
// transport calls.
struct AdaptedNet {
    const net::NetV11* table = nullptr;  // null: the library exports none
    int version = 0;
};

// Version 12 of `library`, else 11. One table of version 12 can be in use at a time: the one that
// was asked for last.
AdaptedNet adapt_net(const PluginLibrary& library) {
    const auto* const v12 = static_cast<const NetV12*>(library.symbol(net::kNetPluginSymbolV12));
    if (v12 != nullptr) {
        return {as_v11(*v12), 12};
    }
    return {static_cast<const NetV11*>(library.symbol(net::kNetPluginSymbolV11)), 11};
}

constexpr size_t kMaxPlugins = 14;

enum class State { kDisabled, kLoadFailed, kLoadReady, kInitReady, kEnabled };

struct Plugin {
    std::string name;
    State state = State::kLoadReady;
    PluginLibrary library;
    AdaptedNet net;
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
    plugin.net = adapt_net(plugin.library);
    if (plugin.net.table == nullptr) {
        log_info("net plugin %s is unsupported: it exports no table of a known version",
                 plugin.library.name().c_str());
        plugin.library.close();
        return;
    }
    log_info("net plugin %s: loaded '%s' (v%d)", plugin.library.name().c_str(),
             plugin.net.table->name, plugin.net.version);
    plugin.state = State::kInitReady;
}

// Whether the plugin can be used; `out` has its context then.
bool initialise(Plugin& plugin, uint64_t comm, const CommSettings& settings, AssignedNet* out) {
    const net::NetV11& table = *plugin.net.table;
    net::NetCommConfigV11 config{settings.traffic_class};
    bool ok = table.init(&out->context, comm, &config, plugin_log, nullptr) == ncclSuccess;
    if (ok && plugin.state == State::kInitReady) {
        ok = table.devices(&plugin.devices) == ncclSuccess && plugin.devices > 0;
    }
    net::NetPropertiesV11 properties{};
    if (ok && (table.get_properties(0, &properties) != ncclSuccess ||
               properties.device_type != net::kNetDeviceHost)) {
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
    out->table = &table;
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
        const char* name = plugin.net.table->name;
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
        plugin.net = {};
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
