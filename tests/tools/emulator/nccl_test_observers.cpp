// The test plugin's tuner, profiler and env tables. The tuner makes the protocol
// $TEST_TUNER_PROTOCOL (NCCL's number) free; the profiler keeps every event and follows the parents
// of the network's; the env table answers $TEST_ENV_X for X.
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/net/abi/env.h"
#include "plugin/net/abi/profiler.h"
#include "plugin/net/abi/tuner.h"
#include "tests/support/tcp_net_plugin.h"

namespace slimwire::test {
namespace {

using namespace slimwire::net;

// --- Tuner

ncclResult_t tune(void* context,
                  TunedCollective,
                  size_t bytes,
                  int,
                  float** costs,
                  int algorithms,
                  int protocols,
                  int,
                  int*) {
    if (context != &counts() || bytes == 0 || algorithms != kTunerAlgorithms ||
        protocols != kTunerProtocols) {
        return ncclInternalError;
    }
    auto* table = reinterpret_cast<float(*)[kTunerProtocols]>(costs);
    const bool sound = table[kAlgorithmTree][kProtocolSimple] == kTunerIgnore &&
                       table[kAlgorithmRing][kProtocolSimple] > 0;
    counts().tuned += sound ? 1 : 0;
    if (const char* wanted = getenv("TEST_TUNER_PROTOCOL"); wanted != nullptr) {
        table[kAlgorithmRing][atoi(wanted)] = 0;
    }
    return ncclSuccess;
}

ncclResult_t open_tuner(int version, size_t ranks, size_t nodes, void** context) {
    if (ranks < nodes || nodes < 1) {
        return ncclInternalError;
    }
    ++counts().tuners_open;
    counts().tuner_version = version;
    *context = &counts();
    return ncclSuccess;
}
ncclResult_t init_tuner_v4(size_t ranks, size_t nodes, DebugLogger, void** context) {
    return open_tuner(4, ranks, nodes, context);
}
ncclResult_t init_tuner_v5(void** context,
                           uint64_t,
                           size_t ranks,
                           size_t nodes,
                           DebugLogger,
                           NvlinkDomainsV5* domains,
                           TunerConstantsV5* constants) {
    const bool sound = domains->domains == static_cast<int>(nodes) && constants != nullptr;
    return sound ? open_tuner(5, ranks, nodes, context) : ncclInternalError;
}
ncclResult_t close_tuner(void* context) {
    --counts().tuners_open;
    return context == &counts() ? ncclSuccess : ncclInternalError;
}

// --- Profiler

struct Event {
    uint64_t type;
    Event* parent;
    bool stopped;
    std::string type_of_data, protocol;
    size_t count;
};

struct Profile {
    std::mutex mutex;
    std::vector<Event*> events;
};
Profile& profile() {
    static auto* const one = new Profile;
    return *one;
}

constexpr int kWanted = kProfileCollective | kProfilePointToPoint | kProfileProxyOperation |
                        kProfileProxyStep | kProfileNetPlugin;

// The chain of a network's event: step, operation, collective or point-to-point.
bool whole_chain(const Event& event) {
    const Event* step = event.parent;
    const Event* operation = step != nullptr ? step->parent : nullptr;
    const Event* task = operation != nullptr ? operation->parent : nullptr;
    return task != nullptr && step->type == kProfileProxyStep && !step->stopped &&
           operation->type == kProfileProxyOperation && !operation->stopped && task->count > 0 &&
           task->type_of_data.rfind("nccl", 0) == 0 &&
           (task->type == kProfilePointToPoint ||
            (task->type == kProfileCollective && !task->protocol.empty()));
}

template <class Descriptor>
Event describe(const Descriptor& from) {
    return {static_cast<uint64_t>(from.type), static_cast<Event*>(from.parent), false, "", "", 0};
}

ncclResult_t keep(void** out, Event event) {
    const std::lock_guard lock(profile().mutex);
    auto* kept = new Event(std::move(event));
    profile().events.push_back(kept);
    ++counts().events_open;
    if (kept->type == kProfileNetPlugin) {
        ++counts().net_events;
        counts().known_types += whole_chain(*kept) ? 1 : 0;
    }
    *out = kept;
    return ncclSuccess;
}

template <class Collective, class PointToPoint>
void fill(Event* event, const Collective& collective, const PointToPoint& p2p) {
    if (event->type == kProfileCollective) {
        event->type_of_data = collective.datatype;
        event->protocol = collective.protocol;
        event->count = collective.count;
    } else if (event->type == kProfilePointToPoint) {
        event->type_of_data = p2p.datatype;
        event->count = p2p.count;
    }
}

ncclResult_t start_v4(void* context, void** out, ProfilerEventV4* descriptor) {
    Event event = describe(*descriptor);
    fill(&event, descriptor->collective, descriptor->point_to_point);
    return context != &counts() ? ncclInternalError : keep(out, std::move(event));
}
ncclResult_t start_v5(void* context, void** out, ProfilerEventV5* descriptor) {
    Event event = describe(*descriptor);
    fill(&event, descriptor->collective.v4, descriptor->point_to_point.v4);
    return context != &counts() ? ncclInternalError : keep(out, std::move(event));
}

ncclResult_t stop(void* opaque) {
    const std::lock_guard lock(profile().mutex);
    auto* event = static_cast<Event*>(opaque);
    counts().events_open -= event->stopped ? 1000 : 1;
    event->stopped = true;
    return ncclSuccess;
}

ncclResult_t record(void* opaque, ProfilerEventState state, ProfilerStateArguments*) {
    const std::lock_guard lock(profile().mutex);
    const bool step = static_cast<Event*>(opaque)->type == kProfileProxyStep;
    const bool sound =
        !static_cast<Event*>(opaque)->stopped && step == (state != kStateOperationInProgress);
    counts().events_open += sound ? 0 : 1000;
    return ncclSuccess;
}

ncclResult_t open_profiler(void** context, int* mask, int version) {
    ++counts().profilers_open;
    counts().profiler_version = version;
    *mask = kWanted;
    *context = &counts();
    return ncclSuccess;
}
ncclResult_t init_profiler_v4(
    void** context, int* mask, const char*, uint64_t, int, int ranks, int rank, DebugLogger) {
    return rank < ranks ? open_profiler(context, mask, 4) : ncclInternalError;
}
ncclResult_t init_profiler_v5(
    void** context, uint64_t, int* mask, const char*, int, int ranks, int rank, DebugLogger) {
    return rank < ranks ? open_profiler(context, mask, 5) : ncclInternalError;
}
ncclResult_t close_profiler(void*) {
    const std::lock_guard lock(profile().mutex);
    if (--counts().profilers_open == 0) {
        for (const Event* event : profile().events) {
            delete event;
        }
        profile().events.clear();
    }
    return ncclSuccess;
}

// --- Env

ncclResult_t init_env(uint8_t major, uint8_t minor, uint8_t, const char*) {
    return major == 2 && minor >= 28 ? ncclSuccess : ncclInternalError;
}
ncclResult_t close_env() {
    return ncclSuccess;
}
const char* get_env(const char* name) {
    const char* value = getenv(("TEST_ENV_" + std::string(name)).c_str());
    return value != nullptr ? value : getenv(name);
}

}  // namespace
}  // namespace slimwire::test

#define SLIMWIRE_TEST_TABLE(type, name, ...)                                          \
    extern "C" __attribute__((visibility("default"))) const slimwire::net::type name; \
    const slimwire::net::type name = {"TestTcp", __VA_ARGS__}

using namespace slimwire::test;

SLIMWIRE_TEST_TABLE(TunerV4, ncclTunerPlugin_v4, init_tuner_v4, tune, close_tuner);
SLIMWIRE_TEST_TABLE(TunerV5, ncclTunerPlugin_v5, init_tuner_v5, tune, close_tuner);
SLIMWIRE_TEST_TABLE(
    ProfilerV4, ncclProfiler_v4, init_profiler_v4, start_v4, stop, record, close_profiler);
SLIMWIRE_TEST_TABLE(
    ProfilerV5, ncclProfiler_v5, init_profiler_v5, start_v5, stop, record, close_profiler);
SLIMWIRE_TEST_TABLE(EnvV1, ncclEnvPlugin_v1, init_env, close_env, get_env);
