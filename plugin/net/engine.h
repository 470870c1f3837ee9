// The plugin's own semantics, above a Wire and below the versioned tables: messages with tags,
// grouped receives, at most kNetMaxRequests requests a connection, compression where it pays. The
// tables (tables/) are thin calls of these classes; nothing here knows their versions.
//
// Thread contract: as ncclNet's. Calls on one connection (and on requests of it) come from one
// thread at a time; everything else from any. Nothing waits; what has to be awaited is finished by
// later calls of test(). Destructors may take a bounded moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "codecs/base/status.h"
#include "plugin/net/abi/net_types.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

class Connection;

// Registered memory; owned by the connection it was registered with.
struct Memory;

// A send or a (grouped) receive in flight; owned by its connection and over when Connection::test()
// says so.
struct Request {
    Connection* connection = nullptr;
};

// What connections of both directions have. One that failed still registers memory and takes sends
// and receives, as NCCL expects: it is their requests that fail, in test(), all with the first
// failure.
class Connection {
  public:
    virtual ~Connection() = default;
    virtual Status register_memory(void* data, size_t bytes, Memory** memory) = 0;
    // Receives into it that are in flight fail, the connection goes on. It ends with memory that
    // the network may be writing to, or that a send still reads.
    virtual Status deregister_memory(Memory* memory) = 0;
    // Whether `request` is over; if so it is released. `sizes` (null or one entry for each grouped
    // receive) gets the bytes of the messages as they were sent. Over means: the exact bytes are in
    // place (receive), the buffer may be reused (send).
    virtual Status test(Request* request, bool* done, size_t* sizes) = 0;
};

class SendConnection : public Connection {
  public:
    // A null *request: try again later.
    virtual Status send(
        const void* data, size_t bytes, int tag, Memory* memory, Request** request) = 0;
};

inline constexpr int kMaxGroupedReceives = 8;

class ReceiveConnection : public Connection {
  public:
    // Posts `count` (1..kMaxGroupedReceives) receives; each takes the next message with its tag
    // that no earlier receive took. With a message larger than its receive the connection fails
    // with kInvalidArgument. A null
    // *request: try again later. `in_place_visible`: somebody may look at the buffers before test()
    // says done (protocols with flags in the data), so final bytes are written once only.
    virtual Status receive(int count,
                           void* const* data,
                           const size_t* capacities,
                           const int* tags,
                           Memory* const* memories,
                           bool in_place_visible,
                           Request** request) = 0;
};

class Listener {
  public:
    virtual ~Listener() = default;
    // A null *connection: nobody has connected yet.
    virtual Status accept(std::unique_ptr<ReceiveConnection>* connection) = 0;
};

// One communicator's use of the plugin (before table v11: the process's).
class Context {
  public:
    virtual ~Context() = default;
    virtual Status listen(int device, void* handle, std::unique_ptr<Listener>* listener) = 0;
    // Called again with the same `handle` (same address) until *connection is not null.
    virtual Status connect(int device,
                           void* handle,
                           std::unique_ptr<SendConnection>* connection) = 0;
};

// The process's plugin: settings, wire, throttle, codec threads. Opened at the first call and kept.
// `log` becomes the way to NCCL's log; kInvalidArgument names a setting that cannot be, kNotFound a
// library that is missing.
class Engine {
  public:
    virtual ~Engine() = default;
    [[nodiscard]] virtual int devices() const noexcept = 0;
    [[nodiscard]] virtual const WireDevice& device(int index) const noexcept = 0;
    virtual Status open(uint64_t comm_id, int traffic_class, std::unique_ptr<Context>* context) = 0;
};
Result<Engine*> plugin_engine(DebugLogger log);

// The same over a given wire. `traffic` counts what its connections carry and outlives the engine;
// null: nobody looks.
struct EngineSettings;
class Traffic;
std::unique_ptr<Engine> make_engine(std::unique_ptr<Wire> wire,
                                    const EngineSettings& settings,
                                    Traffic* traffic = nullptr);

}  // namespace slimwire::net
