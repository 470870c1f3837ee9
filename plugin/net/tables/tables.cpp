// The tables of all versions: NCCL's calls on opaque pointers, turned into calls of the engine
// (engine.h), with the newest tables' parameters first. Here, and only here, a Status becomes an
// ncclResult_t: each failure is logged once, with its text, and no exception leaves. The tables are
// constant data: nothing runs when the library is loaded.
//
// Pointers that NCCL keeps: a context is a Context, a listen comm a Listener, a send or receive
// comm a Connection, a request a Request, a memory handle a Memory. NCCL may finalize in any order.
//
// Thread contract: as ncclNet's (engine.h).
#include <nccl.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "codecs/base/status.h"
#include "collectives/call/nccl_types.h"
#include "plugin/net/abi/net.h"
#include "plugin/net/engine.h"
#include "plugin/net/nccl_log.h"
#include "plugin/net/settings.h"

namespace slimwire::net {
namespace {

constexpr char kPluginName[] = "slimwire";

// What is missing, memory too, is the system's here: no argument of NCCL's names it.
ncclResult_t result_of(Code code) noexcept {
    const bool missing = code == Code::kNotFound || code == Code::kOutOfMemory;
    return missing ? ncclSystemError : nccl_result_of(code);
}

// kInvalidArgument with `text` unless `good`.
[[nodiscard]] inline Status ask(bool good, const char* text) {
    return good ? Status() : Status(Code::kInvalidArgument, text);
}

// Runs `call`, which gives a Status; what it throws becomes one.
template <class Call>
Status caught(Call&& call) noexcept {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return {Code::kOutOfMemory, "out of memory"};
    } catch (const std::exception& error) {
        return {Code::kInternalError, error.what()};
    }
}

// A `logged` that is set already keeps the line away: an error stays with its
// connection and comes back at each call.
template <class Call>
ncclResult_t answer(const char* what, bool* logged, Call&& call) noexcept {
    const Status status = caught(call);
    if (!status.ok() && (logged == nullptr || !*logged)) {
        (void)caught([&] {
            nccl_warn(std::string(what) + ": " + status.message());
            return Status();
        });
        if (logged != nullptr) {
            *logged = true;
        }
    }
    return result_of(status.code());
}

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

Status open_context(Engine* engine, uint64_t comm_id, int traffic_class, void** context) {
    std::unique_ptr<Context> opened;
    SLIMWIRE_TRY(engine->open(comm_id, traffic_class, &opened));
    *context = opened.release();
    return {};
}

// Opens the process's engine and one use of it. `*context` is null after a failure.
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
        return open_context(engine, comm_id, traffic_class, context);
    });
}

// Null is fine: NCCL finalizes what failed to start, too.
ncclResult_t finalize(void* context) noexcept {
    delete static_cast<Context*>(context);
    return ncclSuccess;
}

// Before version 11 init is called once and there is no context: the same for the process, kept.
ncclResult_t init_process(DebugLogger log) noexcept {
    return start(log, [&]() -> Status {
        SLIMWIRE_TRY_ASSIGN([[maybe_unused]] Engine * engine, engine_for(log));
        return {};
    });
}

// The context of `traffic_class` for tables that have none, made when it is first asked for.
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
            SLIMWIRE_TRY(open_context(state.engine, 0, traffic_class, &known));
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

// Null when there is no such device, which is logged.
const WireDevice* device_properties(int device) noexcept {
    const WireDevice* found = nullptr;
    (void)answer("properties", nullptr, [&]() -> Status {
        SLIMWIRE_TRY_ASSIGN(Engine * engine, engine_for(nullptr));
        SLIMWIRE_TRY(engine->check_device(device));
        found = &engine->device(device);
        return {};
    });
    return found;
}

// Logs `text` and gives `result`: for what a table finds wrong by itself.
ncclResult_t refuse(ncclResult_t result, const char* text) noexcept {
    (void)caught([&] {
        nccl_warn(text);
        return Status();
    });
    return result;
}

// What NCCL is about to do; messages say enough by themselves.
ncclResult_t set_net_attr(void*, NetAttrV11*) noexcept {
    return ncclSuccess;
}

// --- Listeners, connections and requests

Connection* connection_of(void* comm) noexcept {
    return static_cast<Connection*>(comm);
}

// Where it is noted that the connection's failure has been said.
bool* logged_of(void* comm) noexcept {
    return comm != nullptr ? &connection_of(comm)->logged : nullptr;
}

ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) noexcept {
    return answer("listen", nullptr, [&]() -> Status {
        SLIMWIRE_TRY(ask(context != nullptr && handle != nullptr && listen_comm != nullptr,
                         "no context, handle or place for the result"));
        *listen_comm = nullptr;
        std::unique_ptr<Listener> listener;
        SLIMWIRE_TRY(static_cast<Context*>(context)->listen(device, handle, &listener));
        *listen_comm = listener.release();
        return {};
    });
}

ncclResult_t connect(
    void* context, int device, void* handle, void** send_comm, NetDeviceHandle**) noexcept {
    return answer("connect", nullptr, [&]() -> Status {
        SLIMWIRE_TRY(ask(context != nullptr && handle != nullptr && send_comm != nullptr,
                         "no context, handle or place for the result"));
        *send_comm = nullptr;
        std::unique_ptr<SendConnection> connection;
        SLIMWIRE_TRY(static_cast<Context*>(context)->connect(device, handle, &connection));
        *send_comm = static_cast<Connection*>(connection.release());
        return {};
    });
}

ncclResult_t accept(void* listen_comm, void** recv_comm, NetDeviceHandle**) noexcept {
    auto* listening = static_cast<Listener*>(listen_comm);
    bool* const logged = listening != nullptr ? &listening->logged : nullptr;
    return answer("accept", logged, [&]() -> Status {
        SLIMWIRE_TRY(ask(listening != nullptr && recv_comm != nullptr,
                         "no listen comm or place for the result"));
        *recv_comm = nullptr;
        std::unique_ptr<ReceiveConnection> connection;
        SLIMWIRE_TRY(listening->accept(&connection));
        *recv_comm = static_cast<Connection*>(connection.release());
        return {};
    });
}

ncclResult_t reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) noexcept {
    return answer("registering memory", logged_of(comm), [&]() -> Status {
        SLIMWIRE_TRY(ask(comm != nullptr && mhandle != nullptr, "no comm or place for the handle"));
        *mhandle = nullptr;
        if (type != kPtrHost) {
            return {Code::kInvalidArgument,
                    "memory of type " + std::to_string(type) + "; accepted: 1 (host)"};
        }
        Memory* memory = nullptr;
        SLIMWIRE_TRY(connection_of(comm)->register_memory(data, bytes, &memory));
        *mhandle = memory;
        return {};
    });
}

ncclResult_t dereg_mr(void* comm, void* mhandle) noexcept {
    return answer("deregistering memory", logged_of(comm), [&]() -> Status {
        SLIMWIRE_TRY(ask(comm != nullptr, "no comm"));
        return mhandle == nullptr
                   ? Status()
                   : connection_of(comm)->deregister_memory(static_cast<Memory*>(mhandle));
    });
}

ncclResult_t isend(void* send_comm,
                   void* data,
                   size_t bytes,
                   int tag,
                   void* mhandle,
                   void*,
                   void** request) noexcept {
    return answer("send", logged_of(send_comm), [&]() -> Status {
        SLIMWIRE_TRY(ask(send_comm != nullptr && request != nullptr &&
                             connection_of(send_comm)->direction == Direction::kSend,
                         "no send comm or place for the request"));
        *request = nullptr;
        if (bytes > kMostMessageBytes) {
            return {Code::kInvalidArgument, "a message of " + std::to_string(bytes) +
                                                " bytes; accepted: up to " +
                                                std::to_string(kMostMessageBytes)};
        }
        auto* const connection = static_cast<SendConnection*>(connection_of(send_comm));
        Request* taken = nullptr;
        SLIMWIRE_TRY(connection->send(data, bytes, tag, static_cast<Memory*>(mhandle), &taken));
        *request = taken;
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
    return answer("receive", logged_of(recv_comm), [&]() -> Status {
        SLIMWIRE_TRY(ask(recv_comm != nullptr && request != nullptr &&
                             connection_of(recv_comm)->direction == Direction::kReceive,
                         "no receive comm or place for the request"));
        const bool visible = *request == kOptionalReceiveCompletion;
        *request = nullptr;
        if (count < 1 || count > kMaxGroupedReceives) {
            return {Code::kInvalidArgument, std::to_string(count) +
                                                " receives in a group; accepted: 1 to " +
                                                std::to_string(kMaxGroupedReceives)};
        }
        Memory* memories[kMaxGroupedReceives] = {};
        for (int i = 0; i < count && mhandles != nullptr; ++i) {
            memories[i] = static_cast<Memory*>(mhandles[i]);
        }
        auto* const connection = static_cast<ReceiveConnection*>(connection_of(recv_comm));
        Request* taken = nullptr;
        SLIMWIRE_TRY(connection->receive(count, data, bytes, tags, memories, visible, &taken));
        *request = taken;
        return {};
    });
}

// NCCL asks for it after receives into GPU memory, which the plugin takes none of.
ncclResult_t iflush(void*, int, void**, int*, void**, void** request) noexcept {
    *request = nullptr;
    return ncclSuccess;
}

ncclResult_t test(void* request, int* done, int* bytes) noexcept {
    auto* const asked = static_cast<Request*>(request);
    return answer(
        "request", asked != nullptr ? logged_of(asked->connection) : nullptr, [&]() -> Status {
            SLIMWIRE_TRY(ask(asked != nullptr && asked->in_use && done != nullptr,
                             "no request, or one that is over"));
            *done = 0;
            bool over = false;
            size_t sizes[kMaxGroupedReceives] = {};
            SLIMWIRE_TRY(asked->connection->test(asked, &over, sizes));
            for (int i = 0; over && i < asked->count && bytes != nullptr; ++i) {
                bytes[i] =
                    static_cast<int>(sizes[i]);  // at most kMostMessageBytes: the sender checked
            }
            *done = over ? 1 : 0;
            return {};
        });
}

ncclResult_t close_comm(void* comm) noexcept {
    delete connection_of(comm);
    return ncclSuccess;
}

ncclResult_t close_listen(void* listen_comm) noexcept {
    delete static_cast<Listener*>(listen_comm);
    return ncclSuccess;
}

// --- The tables

// Each version has more fields than the one before.
template <class Properties>
ncclResult_t get_properties(int device, Properties* properties) noexcept {
    const WireDevice* const wire = device_properties(device);
    if (wire == nullptr) {
        return ncclInvalidArgument;
    }
    *properties = {};
    properties->name = const_cast<char*>(wire->name.c_str());
    properties->pci_path =
        wire->pci_path.empty() ? nullptr : const_cast<char*>(wire->pci_path.c_str());
    properties->guid = wire->guid;
    properties->ptr_support = kPtrHost;
    properties->reg_is_global = 0;  // a Memory belongs to its connection
    properties->speed_mbps = wire->speed_mbps;
    properties->port = wire->port;
    properties->latency_us = wire->latency_us;
    properties->max_comms = wire->max_connections;
    properties->max_recvs = kMaxGroupedReceives;
    properties->device_type = kNetDeviceHost;
    properties->device_version = 0;
    if constexpr (requires { properties->virtual_devices; }) {  // from 9 on
        properties->force_flush = 0;
        properties->virtual_devices.count = 1;
        properties->virtual_devices.devices[0] = device;
        properties->max_p2p_bytes = properties->max_coll_bytes =
            std::min(wire->max_message_bytes, kMostMessageBytes);
    }
    if constexpr (requires { properties->max_multi_request_size; }) {  // from 11 on
        properties->max_multi_request_size = 1;
    }
    if constexpr (requires { properties->rail_id; }) {  // from 12 on
        properties->rail_id = static_cast<int16_t>(wire->rail_id);
        properties->plane_id = static_cast<int16_t>(wire->plane_id);
    }
    return ncclSuccess;
}

// What every version takes alike. Not offered, and so null: DMA-BUF, device offload, virtual cards.
template <class Table>
constexpr Table common_table() noexcept {
    Table table{};
    table.name = kPluginName;
    table.devices = devices;
    table.get_properties = get_properties;
    table.accept = accept;
    table.reg_mr = reg_mr;
    table.dereg_mr = dereg_mr;
    table.iflush = iflush;
    table.test = test;
    table.close_send = close_comm;
    table.close_recv = close_comm;
    table.close_listen = close_listen;
    return table;
}

// From version 11 on: a context for each communicator.
template <class Table>
constexpr Table table_with_contexts() noexcept {
    Table table = common_table<Table>();
    table.init = init;
    table.listen = listen;
    table.connect = connect;
    table.isend = isend;
    table.irecv = irecv;
    table.finalize = finalize;
    table.set_net_attr = set_net_attr;
    return table;
}

// Up to version 10: the process's contexts.
ncclResult_t listen_in_process(int device, void* handle, void** listen_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = process_context(-1, &context);
    return result != ncclSuccess ? result : listen(context, device, handle, listen_comm);
}
ncclResult_t connect_in_process(int traffic_class,
                                int device,
                                void* handle,
                                void** send_comm) noexcept {
    void* context = nullptr;
    const ncclResult_t result = process_context(traffic_class, &context);
    return result != ncclSuccess ? result : connect(context, device, handle, send_comm, nullptr);
}

// Version 10: the traffic class comes with each connection.
ncclResult_t init_profiled(DebugLogger log, ProfilerCallback) noexcept {
    return init_process(log);
}
ncclResult_t connect_with_class(int device,
                                NetCommConfigV10* config,
                                void* handle,
                                void** send_comm,
                                NetDeviceHandle**) noexcept {
    return connect_in_process(config != nullptr ? config->traffic_class : -1, device, handle,
                              send_comm);
}
constexpr NetV10 table_with_class() noexcept {
    auto table = common_table<NetV10>();
    table.init = init_profiled;
    table.listen = listen_in_process;
    table.connect = connect_with_class;
    table.isend = isend;
    table.irecv = irecv;
    return table;
}

// Up to version 9: no traffic class and no profiler; up to version 8, sizes are ints.
ncclResult_t connect_without_class(int device,
                                   void* handle,
                                   void** send_comm,
                                   NetDeviceHandle**) noexcept {
    return connect_in_process(-1, device, handle, send_comm);
}
template <class Bytes>
ncclResult_t isend_unprofiled(
    void* send_comm, void* data, Bytes bytes, int tag, void* mhandle, void** request) noexcept {
    if (std::cmp_less(bytes, 0)) {
        return refuse(ncclInvalidArgument, "send: a negative number of bytes");
    }
    return isend(send_comm, data, static_cast<size_t>(bytes), tag, mhandle, nullptr, request);
}
template <class Bytes>
ncclResult_t irecv_unprofiled(void* recv_comm,
                              int count,
                              void** data,
                              Bytes* bytes,
                              int* tags,
                              void** mhandles,
                              void** request) noexcept {
    size_t sizes[kMaxGroupedReceives] = {};
    for (int i = 0; i < count && i < kMaxGroupedReceives; ++i) {
        if (std::cmp_less(bytes[i], 0)) {
            return refuse(ncclInvalidArgument, "receive: a negative number of bytes");
        }
        sizes[i] = static_cast<size_t>(bytes[i]);
    }
    return irecv(recv_comm, count, data, sizes, tags, mhandles, nullptr, request);
}
template <class Table, class Bytes>
constexpr Table table_without_class() noexcept {
    Table table = common_table<Table>();
    table.init = init_process;
    table.listen = listen_in_process;
    table.connect = connect_without_class;
    table.isend = isend_unprofiled<Bytes>;
    table.irecv = irecv_unprofiled<Bytes>;
    return table;
}

}  // namespace

// The objects that NCCL looks up.
#define SLIMWIRE_NET_TABLE(type, name, ...)                            \
    extern "C" __attribute__((visibility("default"))) const type name; \
    extern "C" constinit const type name = __VA_ARGS__

SLIMWIRE_NET_TABLE(NetV8, ncclNetPlugin_v8, table_without_class<NetV8, int>());
SLIMWIRE_NET_TABLE(NetV9, ncclNetPlugin_v9, table_without_class<NetV9, size_t>());
SLIMWIRE_NET_TABLE(NetV10, ncclNetPlugin_v10, table_with_class());
SLIMWIRE_NET_TABLE(NetV11, ncclNetPlugin_v11, table_with_contexts<NetV11>());
SLIMWIRE_NET_TABLE(NetV12, ncclNetPlugin_v12, table_with_contexts<NetV12>());

}  // namespace slimwire::net
