// Calls of the process and of communicators: start, devices, contexts. And the one table of
// results.
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "collectives/call/nccl_types.h"
#include "plugin/net/nccl_log.h"
#include "plugin/net/settings.h"
#include "plugin/net/tables/boundary.h"
#include "plugin/net/tables/calls.h"

namespace slimwire::net::tables {
namespace {

// The process's part: written by the first init.
struct Process {
    std::mutex mutex;
    Engine* engine = nullptr;
    std::map<int, void*> contexts;  // of tables without contexts, by traffic class
};

// Never destroyed: NCCL's threads may outlive the end of main().
Process& process() noexcept {
    alignas(Process) static unsigned char storage[sizeof(Process)];
    static Process* const made = new (storage) Process;
    return *made;
}

Result<Engine*> engine_for(DebugLogger log) {
    Process& state = process();
    const std::lock_guard lock(state.mutex);
    SLIMWIRE_TRY_ASSIGN(state.engine, plugin_engine(log));
    return state.engine;
}

// A start that fails would only be a line of NCCL_DEBUG=INFO, and the job would go on without us.
template <class Call>
ncclResult_t start(DebugLogger log, Call&& call) noexcept {
    set_nccl_log(log);
    if (switched_off()) {
        nccl_info("off, as SLIMWIRE_MODE says: NCCL goes on without this plugin");
        return ncclInvalidUsage;
    }
    const Status status = caught(call);
    if (!status.ok()) {
        (void)caught([&] {
            nccl_error("the net plugin does not start: " + status.message());
            return Status();
        });
    }
    return result_of(status.code());
}

Status open_session(Engine* engine, uint64_t comm_id, int traffic_class, void** context) {
    std::unique_ptr<Context> opened;
    SLIMWIRE_TRY(engine->open(comm_id, traffic_class, &opened));
    *context = new Session{std::move(opened)};
    return {};
}

}  // namespace

// What is missing, memory too, is the system's here: no argument of NCCL's names it.
ncclResult_t result_of(Code code) noexcept {
    const bool missing = code == Code::kNotFound || code == Code::kOutOfMemory;
    return missing ? ncclSystemError : nccl_result_of(code);
}

ncclResult_t init(void** context,
                  uint64_t comm_id,
                  NetCommConfigV11* config,
                  DebugLogger log,
                  ProfilerCallback) noexcept {
    return start(log, [&]() -> Status {
        SLIMWIRE_TRY(ask(context != nullptr, "init without a place for the context"));
        *context = nullptr;
        SLIMWIRE_TRY_ASSIGN(Engine * engine, engine_for(log));
        const int traffic_class = config != nullptr ? config->traffic_class : -1;
        return open_session(engine, comm_id, traffic_class, context);
    });
}

ncclResult_t finalize(void* context) noexcept {
    delete static_cast<Session*>(context);
    return ncclSuccess;
}

ncclResult_t init_process(DebugLogger log) noexcept {
    return start(log, [&]() -> Status {
        SLIMWIRE_TRY_ASSIGN([[maybe_unused]] Engine * engine, engine_for(log));
        return {};
    });
}

ncclResult_t process_context(int traffic_class, void** context) noexcept {
    return answer("opening the network", nullptr, [&]() -> Status {
        Process& state = process();
        const std::lock_guard lock(state.mutex);
        if (state.engine == nullptr) {
            return {Code::kInvalidUsage, "a call before init"};
        }
        SLIMWIRE_TRY(plugin_engine(nullptr).status());
        void*& known = state.contexts[traffic_class];
        if (known == nullptr) {
            SLIMWIRE_TRY(open_session(state.engine, 0, traffic_class, &known));
        }
        *context = known;
        return {};
    });
}

ncclResult_t devices(int* count) noexcept {
    return answer("devices", nullptr, [&]() -> Status {
        SLIMWIRE_TRY(ask(count != nullptr, "no place for the count"));
        SLIMWIRE_TRY_ASSIGN(Engine * engine, engine_for(nullptr));
        *count = engine->devices();
        return {};
    });
}

const WireDevice* device_properties(int device) noexcept {
    const WireDevice* found = nullptr;
    (void)answer("properties", nullptr, [&]() -> Status {
        SLIMWIRE_TRY_ASSIGN(Engine * engine, engine_for(nullptr));
        if (device < 0 || device >= engine->devices()) {
            return {Code::kInvalidArgument, "no device " + std::to_string(device) + "; there are " +
                                                std::to_string(engine->devices())};
        }
        found = &engine->device(device);
        return {};
    });
    return found;
}

ncclResult_t refuse(ncclResult_t result, const char* text) noexcept {
    (void)caught([&] {
        nccl_warn(text);
        return Status();
    });
    return result;
}

ncclResult_t set_net_attr(void*, NetAttrV11*) noexcept {
    return ncclSuccess;
}

}  // namespace slimwire::net::tables
