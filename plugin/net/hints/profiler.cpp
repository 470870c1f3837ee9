// NCCL's profiler tables (abi/profiler.h), by which the plugin learns element types: hint.h. They
// record nothing. NCCL takes them from the net plugin's library when no profiler is asked for; with
// another profiler in charge sends go by what their bytes look like.
#include "plugin/net/abi/profiler.h"

#include "plugin/net/hints/hint.h"

namespace slimwire::net {
namespace {

// The parents of a proxy step, and what ask_hint() starts.
constexpr int kEvents = kProfileGroup | kProfileCollective | kProfilePointToPoint |
                        kProfileProxyOperation | kProfileProxyStep | kProfileNetPlugin;

ncclResult_t start(uint64_t type,
                   void* parent,
                   const char* datatype,
                   const char* protocol,
                   const ProfiledNetPlugin* question,
                   void** event) noexcept {
    switch (type) {
        case kProfileCollective:
        case kProfilePointToPoint:
            *event = handle_of(hint_from_names(datatype, protocol));
            break;
        case kProfileNetPlugin: {
            auto* const asked = static_cast<HintQuestion*>(question->data);
            if (question->id == kHintPluginId && asked != nullptr &&
                asked->magic == kQuestionMagic) {
                asked->answer = hint_of(parent);
            }
            *event = nullptr;
            break;
        }
        default:
            *event = handle_of(hint_of(parent));
    }
    return ncclSuccess;
}

template <class Event>
ncclResult_t start_event(void*, void** event, Event* descriptor) noexcept {
    const Event& e = *descriptor;
    const char* datatype = nullptr;
    const char* protocol = nullptr;
    if constexpr (requires { e.collective.v4; }) {
        datatype = e.type == kProfileCollective     ? e.collective.v4.datatype
                   : e.type == kProfilePointToPoint ? e.point_to_point.v4.datatype
                                                    : nullptr;
        protocol = e.type == kProfileCollective ? e.collective.v4.protocol : nullptr;
    } else {
        datatype = e.type == kProfileCollective     ? e.collective.datatype
                   : e.type == kProfilePointToPoint ? e.point_to_point.datatype
                                                    : nullptr;
        protocol = e.type == kProfileCollective ? e.collective.protocol : nullptr;
    }
    return start(e.type, e.parent, datatype, protocol, &e.net_plugin, event);
}

ncclResult_t stop_event(void*) noexcept {
    return ncclSuccess;
}
ncclResult_t record_event_state(void*, ProfilerEventState, ProfilerStateArguments*) noexcept {
    return ncclSuccess;
}
ncclResult_t finalize(void*) noexcept {
    return ncclSuccess;
}

ncclResult_t init(void** context,
                  uint64_t,
                  int* event_mask,
                  const char*,
                  int nodes,
                  int,
                  int,
                  DebugLogger) noexcept {
    *context = nullptr;
    *event_mask = nodes > 1 ? kEvents : 0;
    return ncclSuccess;
}
ncclResult_t init_v4(void** context,
                     int* event_mask,
                     const char* comm_name,
                     uint64_t comm_id,
                     int nodes,
                     int ranks,
                     int rank,
                     DebugLogger log) noexcept {
    return init(context, comm_id, event_mask, comm_name, nodes, ranks, rank, log);
}

constexpr char kName[] = "slimwire";

}  // namespace

extern "C" {

#define SLIMWIRE_EXPORT __attribute__((visibility("default")))

SLIMWIRE_EXPORT extern const ProfilerV4 ncclProfiler_v4;
SLIMWIRE_EXPORT extern const ProfilerV5 ncclProfiler_v5;
SLIMWIRE_EXPORT extern const ProfilerV6 ncclProfiler_v6;
const ProfilerV4 ncclProfiler_v4 = {
    kName, init_v4, start_event<ProfilerEventV4>, stop_event, record_event_state, finalize};
const ProfilerV5 ncclProfiler_v5 = {
    kName, init, start_event<ProfilerEventV5>, stop_event, record_event_state, finalize};
const ProfilerV6 ncclProfiler_v6 = {
    kName, init, start_event<ProfilerEventV6>, stop_event, record_event_state, finalize};
}

}  // namespace slimwire::net
