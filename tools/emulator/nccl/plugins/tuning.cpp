#include "tools/emulator/nccl/plugins/tuning.h"

#include <strings.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "plugin/net/abi/tuner.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/plugins/net_select.h"
#include "tools/emulator/nccl/plugins/plugin_library.h"

namespace slimwire::emu {
namespace {

using Costs = float[net::kTunerAlgorithms][net::kTunerProtocols];

// Of a ring between nodes, in microseconds, and the part of the wire's rate that each protocol
// leaves for data. Source: NCCL 2.28, graph/tuning.cc.
constexpr double kBaseUs[kProtocols] = {6.6, 14.0, 8.4};
constexpr double kHopUs[kProtocols] = {2.7, 4.0, 14.0};
constexpr double kRate[kProtocols] = {0.5, 0.92, 1.0};
constexpr int kDefaultSpeedMbps = 100'000;

struct Loaded {
    std::mutex mutex;
    bool failed = false;
    int users = 0;
    PluginLibrary library;
    const net::TunerV7* table = nullptr;
};

ncclResult_t init(const net::TunerV7& table, const Tuning::Place& place, void** context) {
    net::NvlinkDomainsV5 domains{place.nodes, place.min_node_ranks, place.max_node_ranks};
    net::TunerConstantsV7 constants{};
    for (int p = 0; p < kProtocols; ++p) {
        constants.base_latencies_us[net::kAlgorithmRing][p] = kBaseUs[p];
        constants.link_latencies_us[2][net::kAlgorithmRing][p] = kHopUs[p];
    }
    return table.init(context, place.comm, static_cast<size_t>(place.ranks),
                      static_cast<size_t>(place.nodes), plugin_log, &domains, &constants);
}

Loaded& loaded() {
    static auto* const one = new Loaded;
    return *one;
}

bool load(Loaded& plugin) {
    const char* name = getenv("NCCL_TUNER_PLUGIN");
    if (name != nullptr && strcasecmp(name, "none") == 0) {
        return false;
    }
    plugin.library = PluginLibrary::open("tuner", name != nullptr ? name : "");
    const bool own = plugin.library.is_open();
    if (!own) {
        plugin.library = net_plugin_library();
    }
    plugin.table =
        static_cast<const net::TunerV7*>(plugin.library.symbol(net::kTunerPluginSymbolV7));
    if (plugin.table == nullptr) {
        if (own) {
            log_info("tuner plugin %s is unsupported", plugin.library.name().c_str());
        }
        plugin.library.close();
        return false;
    }
    log_info("tuner plugin %s: using '%s' (v7)", plugin.library.name().c_str(), plugin.table->name);
    return true;
}

// "LL,Simple" or "^LL128": names by comma, those that may be used or, after ^, may not.
Result<unsigned> allowed_protocols() {
    constexpr unsigned kAll = 7;
    const char* text = getenv("NCCL_PROTO");
    if (text == nullptr || *text == '\0') {
        return kAll;
    }
    const bool exclude = *text == '^';
    unsigned named = 0;
    for (const std::string& entry : list_entries(exclude ? text + 1 : text)) {
        unsigned found = 0;
        for (int p = 0; p < kProtocols; ++p) {
            if (strcasecmp(entry.c_str(), protocol_name(static_cast<Protocol>(p))) == 0) {
                found = 1u << p;
            }
        }
        if (found == 0) {
            return Status(Code::kInvalidUsage, "NCCL_PROTO: '" + entry +
                                                   "': expected LL, LL128 or Simple, several by "
                                                   "comma, after ^ those not to use");
        }
        named |= found;
    }
    return exclude ? kAll & ~named : named;
}

// Messages one after the other, and passes over the data, of a ring of n ranks.
double hops(TaskKind kind, int n) {
    return kind == TaskKind::kAllReduce                                       ? 2.0 * (n - 1)
           : kind == TaskKind::kReduceScatter || kind == TaskKind::kAllGather ? n - 1.0
                                                                              : n;
}

size_t tuned_bytes(const Task& task, int ranks) {
    const bool of_all = task.kind == TaskKind::kReduceScatter || task.kind == TaskKind::kAllGather;
    return task.bytes() * static_cast<size_t>(of_all ? ranks : 1);
}

void fill_costs(const Task& task, const Tuning::Place& place, unsigned allowed, Costs costs) {
    const double speed = place.speed_mbps > 0 ? place.speed_mbps : kDefaultSpeedMbps;
    const double n = hops(task.kind, place.ranks);
    const auto bytes = static_cast<double>(tuned_bytes(task, place.ranks));
    for (int a = 0; a < net::kTunerAlgorithms; ++a) {
        for (int p = 0; p < kProtocols; ++p) {
            const bool usable = a == net::kAlgorithmRing && (allowed & 1u << p) != 0;
            const double bytes_per_us = speed / 8 * kRate[p] * place.ranks / n;
            costs[a][p] =
                usable ? static_cast<float>(kBaseUs[p] + n * kHopUs[p] + bytes / bytes_per_us)
                       : net::kTunerIgnore;
        }
    }
}

}  // namespace

Result<std::unique_ptr<Tuning>> Tuning::make(const Place& place) {
    std::unique_ptr<Tuning> made(new Tuning(place));
    SLIMWIRE_TRY_ASSIGN(made->allowed_, allowed_protocols());
    Loaded& plugin = loaded();
    const std::lock_guard lock(plugin.mutex);
    if (plugin.users == 0 && !plugin.failed) {
        plugin.failed = !load(plugin);
    }
    if (plugin.failed) {
        return made;
    }
    const ncclResult_t result = init(*plugin.table, place, &made->context_);
    if (result != ncclSuccess) {
        return Status(Code::kInternalError,
                      "the tuner failed to initialize with " + std::to_string(result));
    }
    ++plugin.users;
    made->tuner_ = true;
    return made;
}

Tuning::~Tuning() {
    if (!tuner_) {
        return;
    }
    Loaded& plugin = loaded();
    const std::lock_guard lock(plugin.mutex);
    (void)plugin.table->finalize(context_);
    if (--plugin.users == 0) {
        plugin.table = nullptr;
        plugin.library.close();
    }
}

Result<Protocol> Tuning::choose(const Task& task) {
    Costs costs;
    fill_costs(task, place_, allowed_, costs);
    if (tuner_) {
        const Loaded& plugin = loaded();
        int channels = 0;
        const ncclResult_t result = plugin.table->get_coll_info(
            context_, task_function(task.kind).number, tuned_bytes(task, place_.ranks), 1,
            reinterpret_cast<float**>(costs), net::kTunerAlgorithms, net::kTunerProtocols, 0,
            &channels);
        if (result != ncclSuccess) {
            log_info("the tuner fails with %d for %s: going on without", result,
                     task_function(task.kind).name);
            fill_costs(task, place_, allowed_, costs);
        }
    }
    int best = -1;
    for (int p = 0; p < kProtocols; ++p) {
        const float cost = costs[net::kAlgorithmRing][p];
        if (cost >= 0 && (best < 0 || cost < costs[net::kAlgorithmRing][best])) {
            best = p;
        }
    }
    if (best < 0) {
        return Status(Code::kInvalidUsage, std::string("no algorithm or protocol is left for ") +
                                               task_function(task.kind).name +
                                               " (NCCL_PROTO, tuner)");
    }
    return static_cast<Protocol>(best);
}

}  // namespace slimwire::emu
