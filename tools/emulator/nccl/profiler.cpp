#include "tools/emulator/nccl/profiler.h"

#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "tools/emulator/nccl/log.h"
#include "tools/emulator/nccl/net_select.h"
#include "tools/emulator/nccl/plugin_library.h"

namespace slimwire::emu {
namespace {

using net::ProfilerEventV4;
using net::ProfilerEventV5;

// One library for all communicators of the process, open while any of them uses it.
struct Loaded {
    std::mutex mutex;
    bool failed = false;
    int users = 0;
    PluginLibrary library;
    const net::ProfilerV5* v5 = nullptr;
    const net::ProfilerV4* v4 = nullptr;
    std::atomic<int> mask{0};
};

Loaded& loaded() {
    static auto* const one = new Loaded;  // workers may outlive static destructors
    return *one;
}

bool load(Loaded& plugin, int only) {
    const char* name = nccl_env("NCCL_PROFILER_PLUGIN");
    if (name != nullptr && strcasecmp(name, "none") == 0) {
        return false;
    }
    plugin.library = PluginLibrary::open("profiler", name != nullptr ? name : "");
    const bool own = plugin.library.is_open();
    if (!own) {
        plugin.library = net_plugin_library();
    }
    if (only == 0 || only == 5) {
        plugin.v5 =
            static_cast<const net::ProfilerV5*>(plugin.library.symbol(net::kProfilerSymbolV5));
    }
    if (plugin.v5 == nullptr && (only == 0 || only == 4)) {
        plugin.v4 =
            static_cast<const net::ProfilerV4*>(plugin.library.symbol(net::kProfilerSymbolV4));
    }
    if (plugin.v5 == nullptr && plugin.v4 == nullptr) {
        if (own) {
            log_info("profiler plugin %s is unsupported", plugin.library.name().c_str());
        }
        plugin.library.close();
        return false;
    }
    log_info("profiler plugin %s: using '%s' (v%d)", plugin.library.name().c_str(),
             plugin.v5 != nullptr ? plugin.v5->name : plugin.v4->name,
             plugin.v5 != nullptr ? 5 : 4);
    return true;
}

const char* datatype_name(DType type) {
    constexpr const char* kNames[] = {"ncclInt8",     "ncclUint8",      "ncclInt32",
                                      "ncclUint32",   "ncclInt64",      "ncclUint64",
                                      "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
                                      "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
    return kNames[static_cast<size_t>(type)];
}

// Version 4 has no events of the API, and a task's parent is its group.
bool as_v4(const ProfilerEventV5& event, ProfilerEventV4* out) {
    *out = {};
    out->type = static_cast<uint8_t>(event.type);
    out->parent = event.parent;
    out->rank = event.rank;
    switch (event.type) {
        case net::kProfileCollective:
            out->parent = event.collective.parent_group;
            out->collective = event.collective.v4;
            return true;
        case net::kProfilePointToPoint:
            out->parent = event.point_to_point.parent_group;
            out->point_to_point = event.point_to_point.v4;
            return true;
        case net::kProfileProxyOperation:
            out->proxy_operation = event.proxy_operation;
            return true;
        case net::kProfileProxyStep:
            out->proxy_step = event.proxy_step;
            return true;
        case net::kProfileNetPlugin:
            out->net_plugin = event.net_plugin;
            return true;
        case net::kProfileGroup:
            return true;
        default:
            return false;
    }
}

constexpr int kSteps = net::kProfileProxyStep | net::kProfileNetPlugin;
constexpr int kOperations = net::kProfileProxyOperation | kSteps;
constexpr int kBelowTasks = kOperations | net::kProfileKernelChannel;
constexpr int kCollectives = net::kProfileCollective | kBelowTasks;
constexpr int kPointToPoints = net::kProfilePointToPoint | kBelowTasks;

}  // namespace

int Profiler::mask() noexcept {
    return loaded().mask.load(std::memory_order_relaxed);
}

Result<std::unique_ptr<Profiler>> Profiler::make(Place place) {
    SLIMWIRE_TRY_ASSIGN(const int only, forced_version("profiler"));
    Loaded& plugin = loaded();
    const std::lock_guard lock(plugin.mutex);
    if (plugin.users == 0 && !plugin.failed) {
        plugin.failed = !load(plugin, only);
    }
    if (plugin.failed) {
        return std::unique_ptr<Profiler>();
    }
    ++plugin.users;
    std::unique_ptr<Profiler> made(new Profiler(std::move(place)));
    const Place& at = made->place_;
    const char* name = at.name.empty() ? nullptr : at.name.c_str();
    int mask = plugin.mask;
    const ncclResult_t result = plugin.v5 != nullptr
                                    ? plugin.v5->init(&made->context_, at.comm, &mask, name,
                                                      at.nodes, at.ranks, at.rank, plugin_log)
                                    : plugin.v4->init(&made->context_, &mask, name, at.comm,
                                                      at.nodes, at.ranks, at.rank, plugin_log);
    made->initialised_ = result == ncclSuccess;
    if (!made->initialised_) {
        log_info("the profiler failed to initialize with %d: going on without", result);
    } else {
        plugin.mask = mask;
    }
    return made;
}

Profiler::~Profiler() {
    Loaded& plugin = loaded();
    const std::lock_guard lock(plugin.mutex);
    if (initialised_ && context_ != nullptr) {
        (void)(plugin.v5 != nullptr ? plugin.v5->finalize(context_)
                                    : plugin.v4->finalize(context_));
    }
    if (--plugin.users == 0) {
        plugin.v5 = nullptr;
        plugin.v4 = nullptr;
        plugin.mask = 0;
        plugin.library.close();
    }
}

void* Profiler::start(ProfilerEventV5& event) {
    const Loaded& plugin = loaded();
    void* handle = nullptr;
    if (!initialised_) {
        return nullptr;
    }
    event.rank = place_.rank;
    if (plugin.v5 != nullptr) {
        (void)plugin.v5->start_event(context_, &handle, &event);
        return handle;
    }
    ProfilerEventV4 older;
    if (as_v4(event, &older)) {
        (void)plugin.v4->start_event(context_, &handle, &older);
    }
    return handle;
}

void Profiler::record(void* event,
                      net::ProfilerEventState state,
                      net::ProfilerStateArguments more) {
    const Loaded& plugin = loaded();
    if (event != nullptr) {
        (void)(plugin.v5 != nullptr ? plugin.v5->record_event_state(event, state, &more)
                                    : plugin.v4->record_event_state(event, state, &more));
    }
}

void Profiler::stop(void* event) {
    const Loaded& plugin = loaded();
    if (event != nullptr) {
        (void)(plugin.v5 != nullptr ? plugin.v5->stop_event(event) : plugin.v4->stop_event(event));
    }
}

void* Profiler::start_task(const Task& task, void* api, void* group) {
    ProfilerEventV5 event{};
    event.parent = api;
    if (is_point_to_point(task.kind)) {
        void* buffer = task.kind == TaskKind::kSend ? const_cast<void*>(task.send) : task.recv;
        event.type = net::kProfilePointToPoint;
        event.point_to_point = {
            {task_name(task.kind), buffer, datatype_name(task.type), task.count, task.root, 1},
            group};
    } else {
        event.type = net::kProfileCollective;
        event.collective = {{sequence_[static_cast<size_t>(task.kind)]++, task_name(task.kind),
                             task.send, task.recv, task.count, task.root, datatype_name(task.type),
                             1, 16, "RING", protocol_name(task.protocol)},
                            group};
    }
    return start(event);
}

void Profiler::prepare(std::vector<Task>& tasks) {
    const int wanted = mask();
    const auto of = [](const Task& task) {
        return is_point_to_point(task.kind) ? kPointToPoints : kCollectives;
    };
    const auto api_of = [&](const Task& task) {
        return of(task) | (is_point_to_point(task.kind) ? net::kProfilePointToPointApi
                                                        : net::kProfileCollectiveApi);
    };
    ProfilerEventV5 group_api{};
    group_api.type = net::kProfileGroupApi;
    group_api.group_api = {false, 1};
    ProfilerEventV5 group{};
    group.type = net::kProfileGroup;
    constexpr int kAny = kCollectives | kPointToPoints | net::kProfileGroup;
    constexpr int kAnyApi = kAny | net::kProfileGroupApi | net::kProfileCollectiveApi |
                            net::kProfilePointToPointApi | net::kProfileKernelLaunch;
    void* const group_api_event = (wanted & kAnyApi) != 0 ? start(group_api) : nullptr;
    std::vector<void*> apis;
    for (const Task& task : tasks) {
        ProfilerEventV5 event{};
        event.parent = group_api_event;
        if (is_point_to_point(task.kind)) {
            event.type = net::kProfilePointToPointApi;
            event.point_to_point_api = {task_name(task.kind), task.count, datatype_name(task.type),
                                        nullptr, false};
        } else {
            event.type = net::kProfileCollectiveApi;
            event.collective_api = {task_name(task.kind),
                                    task.count,
                                    datatype_name(task.type),
                                    task.root,
                                    nullptr,
                                    false};
        }
        apis.push_back((wanted & api_of(task)) != 0 ? start(event) : nullptr);
        stop(apis.back());
    }
    void* const group_event = (wanted & kAny) != 0 ? start(group) : nullptr;
    for (size_t i = 0; i < tasks.size(); ++i) {
        tasks[i].event =
            (wanted & of(tasks[i])) != 0 ? start_task(tasks[i], apis[i], group_event) : nullptr;
    }
    for (const Task& task : tasks) {
        stop(task.event);
    }
    stop(group_event);
    stop(group_api_event);
}

void* Profiler::start_proxy_operation(const net::ProfiledProxyOperation& operation, void* parent) {
    if ((mask() & kOperations) == 0) {
        return nullptr;
    }
    ProfilerEventV5 event{};
    event.type = net::kProfileProxyOperation;
    event.parent = parent;
    event.proxy_operation = operation;
    event.proxy_operation.pid = getpid();
    return start(event);
}

void* Profiler::start_proxy_step(int step, void* parent) {
    if ((mask() & kSteps) == 0) {
        return nullptr;
    }
    ProfilerEventV5 event{};
    event.type = net::kProfileProxyStep;
    event.parent = parent;
    event.proxy_step = {step};
    return start(event);
}

void* Profiler::start_net_plugin(int64_t id, void* data, void* parent) {
    if ((mask() & net::kProfileNetPlugin) == 0) {
        return nullptr;
    }
    ProfilerEventV5 event{};
    event.type = net::kProfileNetPlugin;
    event.parent = parent;
    event.net_plugin = {id, data};
    return start(event);
}

}  // namespace slimwire::emu
