// Calls of the process and of communicators: start, devices, contexts. And the one table of
// results.
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "collectives/call/nccl_types.h"
#include "plugin/net/nccl_log.h"
#include "plugin/net/settings.h"
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

// Calls of listeners, connections and requests.

namespace {

struct ListenComm {
    std::shared_ptr<Context> context;
    std::unique_ptr<Listener> listener;
    bool failed = false;
};

struct Comm;

struct Slot {
    Comm* comm = nullptr;
    Request* request = nullptr;  // null: free
    int count = 0;               // sizes that test() gives
    bool failed = false;         // it has been told so: the next may have the place
};

struct Comm {
    std::shared_ptr<Context> context;
    std::unique_ptr<SendConnection> send;  // one of the two
    std::unique_ptr<ReceiveConnection> receive;
    bool failed = false;  // it has been logged
    // A flush may run beside a full set of receives.
    std::array<Slot, kNetMaxRequests * 2> slots;

    [[nodiscard]] Connection* connection() const noexcept {
        return send != nullptr ? static_cast<Connection*>(send.get()) : receive.get();
    }
    Slot* free_slot() noexcept {
        for (Slot& slot : slots) {
            if (slot.request == nullptr || slot.failed) {
                return &slot;
            }
        }
        return nullptr;
    }
};

Comm* comm_of(void* comm) noexcept {
    return static_cast<Comm*>(comm);
}

// A request that the connection took, or a free place again.
void give(Slot* slot, Request* taken, int count, void** request) noexcept {
    slot->request = taken;
    slot->count = count;
    slot->failed = false;
    *request = taken != nullptr ? slot : nullptr;
}

}  // namespace

ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) noexcept {
    return answer("listen", nullptr, [&]() -> Status {
        auto* session = static_cast<Session*>(context);
        SLIMWIRE_TRY(ask(session != nullptr && handle != nullptr && listen_comm != nullptr,
                         "no context, handle or place for the result"));
        *listen_comm = nullptr;
        auto comm = std::make_unique<ListenComm>();
        comm->context = session->context;
        SLIMWIRE_TRY(session->context->listen(device, handle, &comm->listener));
        *listen_comm = comm.release();
        return {};
    });
}

ncclResult_t connect(
    void* context, int device, void* handle, void** send_comm, NetDeviceHandle**) noexcept {
    return answer("connect", nullptr, [&]() -> Status {
        auto* session = static_cast<Session*>(context);
        SLIMWIRE_TRY(ask(session != nullptr && handle != nullptr && send_comm != nullptr,
                         "no context, handle or place for the result"));
        *send_comm = nullptr;
        std::unique_ptr<SendConnection> connection;
        SLIMWIRE_TRY(session->context->connect(device, handle, &connection));
        if (connection != nullptr) {
            auto comm = std::make_unique<Comm>();
            comm->context = session->context;
            comm->send = std::move(connection);
            *send_comm = comm.release();
        }
        return {};
    });
}

ncclResult_t accept(void* listen_comm, void** recv_comm, NetDeviceHandle**) noexcept {
    auto* listening = static_cast<ListenComm*>(listen_comm);
    bool* const logged = listening != nullptr ? &listening->failed : nullptr;
    return answer("accept", logged, [&]() -> Status {
        SLIMWIRE_TRY(ask(listening != nullptr && recv_comm != nullptr,
                         "no listen comm or place for the result"));
        *recv_comm = nullptr;
        std::unique_ptr<ReceiveConnection> connection;
        SLIMWIRE_TRY(listening->listener->accept(&connection));
        if (connection != nullptr) {
            auto comm = std::make_unique<Comm>();
            comm->context = listening->context;
            comm->receive = std::move(connection);
            *recv_comm = comm.release();
        }
        return {};
    });
}

ncclResult_t reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) noexcept {
    bool* const logged = comm != nullptr ? &comm_of(comm)->failed : nullptr;
    return answer("registering memory", logged, [&]() -> Status {
        SLIMWIRE_TRY(ask(comm != nullptr && mhandle != nullptr, "no comm or place for the handle"));
        *mhandle = nullptr;
        if (type != kPtrHost) {
            return {Code::kInvalidArgument,
                    "memory of type " + std::to_string(type) + "; accepted: 1 (host)"};
        }
        Memory* memory = nullptr;
        SLIMWIRE_TRY(comm_of(comm)->connection()->register_memory(data, bytes, &memory));
        *mhandle = memory;
        return {};
    });
}

ncclResult_t dereg_mr(void* comm, void* mhandle) noexcept {
    bool* const logged = comm != nullptr ? &comm_of(comm)->failed : nullptr;
    return answer("deregistering memory", logged, [&]() -> Status {
        SLIMWIRE_TRY(ask(comm != nullptr, "no comm"));
        if (mhandle == nullptr) {
            return {};
        }
        return comm_of(comm)->connection()->deregister_memory(static_cast<Memory*>(mhandle));
    });
}

ncclResult_t isend(void* send_comm,
                   void* data,
                   size_t bytes,
                   int tag,
                   void* mhandle,
                   void*,
                   void** request) noexcept {
    Comm* const comm = comm_of(send_comm);
    return answer("send", comm != nullptr ? &comm->failed : nullptr, [&]() -> Status {
        SLIMWIRE_TRY(ask(comm != nullptr && comm->send != nullptr && request != nullptr,
                         "no send comm or place for the request"));
        *request = nullptr;
        if (bytes > kMostMessageBytes) {
            return {Code::kInvalidArgument, "a message of " + std::to_string(bytes) +
                                                " bytes; accepted: up to " +
                                                std::to_string(kMostMessageBytes)};
        }
        Slot* const slot = comm->free_slot();
        if (slot == nullptr) {
            return {};
        }
        slot->comm = comm;
        Request* taken = nullptr;
        SLIMWIRE_TRY(comm->send->send(data, bytes, tag, static_cast<Memory*>(mhandle), &taken));
        give(slot, taken, 1, request);
        return {};
    });
}

ncclResult_t irecv(void* recv_comm,
                   int count,
                   void** data,
                   size_t* bytes,
                   int* tags,
                   void** mhandles,
                   void**,
                   void** request) noexcept {
    Comm* const comm = comm_of(recv_comm);
    return answer("receive", comm != nullptr ? &comm->failed : nullptr, [&]() -> Status {
        SLIMWIRE_TRY(ask(comm != nullptr && comm->receive != nullptr && request != nullptr,
                         "no receive comm or place for the request"));
        const bool visible = *request == kOptionalReceiveCompletion;
        *request = nullptr;
        if (count < 1 || count > kMaxGroupedReceives) {
            return {Code::kInvalidArgument, std::to_string(count) +
                                                " receives in a group; accepted: 1 to " +
                                                std::to_string(kMaxGroupedReceives)};
        }
        Slot* const slot = comm->free_slot();
        if (slot == nullptr) {
            return {};
        }
        slot->comm = comm;
        Memory* memories[kMaxGroupedReceives] = {};
        for (int i = 0; i < count && mhandles != nullptr; ++i) {
            memories[i] = static_cast<Memory*>(mhandles[i]);
        }
        Request* taken = nullptr;
        SLIMWIRE_TRY(comm->receive->receive(count, data, bytes, tags, memories, visible, &taken));
        give(slot, taken, count, request);
        return {};
    });
}

// NCCL asks for it after receives into GPU memory, which the plugin takes none of.
ncclResult_t iflush(void*, int, void**, int*, void**, void** request) noexcept {
    *request = nullptr;
    return ncclSuccess;
}

ncclResult_t test(void* request, int* done, int* bytes) noexcept {
    auto* slot = static_cast<Slot*>(request);
    bool* const logged = slot != nullptr ? &slot->comm->failed : nullptr;
    return answer("request", logged, [&]() -> Status {
        SLIMWIRE_TRY(ask(slot != nullptr && slot->request != nullptr && done != nullptr,
                         "no request, or one that is over"));
        *done = 0;
        bool over = false;
        size_t sizes[kMaxGroupedReceives] = {};
        if (Status tested = slot->comm->connection()->test(slot->request, &over, sizes);
            !tested.ok()) {
            slot->failed = true;
            return tested;
        }
        if (!over) {
            return {};
        }
        for (int i = 0; i < slot->count && bytes != nullptr; ++i) {
            bytes[i] = static_cast<int>(sizes[i]);  // at most kMostMessageBytes: the sender checked
        }
        slot->request = nullptr;
        *done = 1;
        return {};
    });
}

ncclResult_t close_comm(void* comm) noexcept {
    delete comm_of(comm);
    return ncclSuccess;
}

ncclResult_t close_listen(void* listen_comm) noexcept {
    delete static_cast<ListenComm*>(listen_comm);
    return ncclSuccess;
}

}  // namespace slimwire::net::tables
