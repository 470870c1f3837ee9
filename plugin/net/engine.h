// What NCCL's plugin does, below the versioned tables: messages with tags, grouped receives, at
// most kNetMaxRequests requests a connection, compression where it pays. The tables (tables/) are
// thin calls of these classes; nothing here knows their versions.
//
// Thread contract: as ncclNet's. Calls on one connection (and on requests of it) come from one
// thread at a time; everything else from any. Nothing waits; what has to be awaited is finished by
// later calls of test(). Destructors may take a bounded moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "codecs/base/status.h"
#include "plugin/net/abi/net_types.h"
#include "plugin/net/engine/receive_connection.h"
#include "plugin/net/engine/send_connection.h"
#include "plugin/net/throttle.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

class Engine;

class Listener {
  public:
    Listener(const Engine& engine,
             std::shared_ptr<Network> network,
             std::unique_ptr<WireListener> wire,
             size_t device)
        : engine_(engine), network_(std::move(network)), wire_(std::move(wire)), device_(device) {}
    // A null *connection: nobody has connected yet.
    Status accept(std::unique_ptr<ReceiveConnection>* connection);

    bool logged = false;  // the tables': its failure has been said

  private:
    const Engine& engine_;
    const std::shared_ptr<Network> network_;
    const std::unique_ptr<WireListener> wire_;
    const size_t device_;
};

// One communicator's use of the plugin (before table v11: the process's). What is made in it may
// outlive it.
class Context {
  public:
    Context(const Engine& engine, std::shared_ptr<Network> network)
        : engine_(engine), network_(std::move(network)) {}
    Status listen(int device, void* handle, std::unique_ptr<Listener>* listener);
    // Called again with the same `handle` (same address) until *connection is not null.
    Status connect(int device, void* handle, std::unique_ptr<SendConnection>* connection);

  private:
    // NCCL calls with the same memory until it has a connection, or gives up without a word.
    struct Attempt {
        char given[kNetHandleBytes];
        char handle[kNetHandleBytes];  // the wire's own copy: some write into it
        std::unique_ptr<WireConnecting> wire;
    };
    Attempt* attempt_of(const void* handle);

    const Engine& engine_;
    const std::shared_ptr<Network> network_;
    std::mutex mutex_;
    std::map<const void*, std::unique_ptr<Attempt>> attempts_;
};

// The process's plugin over a wire: settings, throttle, codec threads.
class Engine {
  public:
    // `traffic` counts what its connections carry and outlives the engine; null: nobody looks.
    Engine(std::unique_ptr<Wire> wire, const EngineSettings& settings, Traffic* traffic = nullptr);

    [[nodiscard]] int devices() const noexcept { return static_cast<int>(devices_.size()); }
    [[nodiscard]] const WireDevice& device(int index) const noexcept {
        return devices_[static_cast<size_t>(index)];
    }
    Status open(uint64_t comm_id, int traffic_class, std::unique_ptr<Context>* context);

    // kInvalidArgument where there is none.
    [[nodiscard]] Status check_device(int index) const;
    // Null: nothing slows the device down.
    [[nodiscard]] const std::shared_ptr<Throttle>& throttle(size_t device) const noexcept {
        return throttles_[device];
    }

  private:
    CodecPool pool_;
    Traffic own_traffic_;
    EngineParts parts_;
    std::unique_ptr<Wire> wire_;
    std::vector<WireDevice> devices_;
    std::vector<std::shared_ptr<Throttle>> throttles_;
};

// The process's, over the wire that the settings name; opened at the first call and kept. `log`
// becomes the way to NCCL's log; kInvalidArgument names a setting that cannot be, kNotFound a
// library that is missing.
Result<Engine*> plugin_engine(DebugLogger log);

}  // namespace slimwire::net
