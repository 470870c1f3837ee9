// The engine's objects that are not connections: the process's engine, contexts, listeners and
// attempts to connect.
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "plugin/net/engine.h"
#include "plugin/net/engine/receive_connection.h"
#include "plugin/net/engine/send_connection.h"

namespace slimwire::net {
namespace {

class EngineListener final : public Listener {
  public:
    EngineListener(const EngineParts& parts, std::unique_ptr<WireListener> wire, const char* device)
        : parts_(parts), wire_(std::move(wire)), device_(device) {}

    Status accept(std::unique_ptr<ReceiveConnection>* connection) override {
        std::unique_ptr<ReceiveWire> wire;
        SLIMWIRE_TRY(wire_->accept(&wire));
        if (wire != nullptr) {
            SLIMWIRE_TRY_ASSIGN(*connection, EngineReceive::make(parts_, std::move(wire), device_));
        }
        return {};
    }

  private:
    const EngineParts& parts_;
    std::unique_ptr<WireListener> wire_;
    const char* const device_;
};

class EngineContext final : public Context {
  public:
    EngineContext(const EngineParts& parts,
                  const std::vector<WireDevice>& devices,
                  std::unique_ptr<WireContext> wire)
        : parts_(parts), devices_(devices), wire_(std::move(wire)) {}
    ~EngineContext() override { parts_.traffic->context_ended(); }

    Status listen(int device, void* handle, std::unique_ptr<Listener>* listener) override {
        std::unique_ptr<WireListener> wire;
        SLIMWIRE_TRY(wire_->listen(device, handle, &wire));
        *listener = std::make_unique<EngineListener>(parts_, std::move(wire), name_of(device));
        return {};
    }

    Status connect(int device, void* handle, std::unique_ptr<SendConnection>* connection) override {
        Attempt* const attempt = attempt_of(handle);
        std::unique_ptr<SendWire> wire;
        const Status status = wire_->connect(device, attempt->handle, &attempt->wire, &wire);
        if (status.ok() && wire == nullptr) {
            return {};
        }
        forget(handle);
        SLIMWIRE_TRY(status);
        SLIMWIRE_TRY_ASSIGN(*connection,
                            EngineSend::make(parts_, std::move(wire), name_of(device)));
        return {};
    }

  private:
    [[nodiscard]] const char* name_of(int device) const noexcept {
        const auto index = static_cast<size_t>(device);
        return index < devices_.size() ? devices_[index].name : "";
    }

    // NCCL calls with the same memory until it has a connection, or gives up without a word.
    struct Attempt {
        char given[kNetHandleBytes];
        char handle[kNetHandleBytes];  // the wire's own copy: some write into it
        std::unique_ptr<WireConnecting> wire;
    };

    Attempt* attempt_of(const void* handle) {
        const std::lock_guard lock(mutex_);
        std::unique_ptr<Attempt>& attempt = attempts_[handle];
        if (attempt == nullptr || std::memcmp(attempt->given, handle, kNetHandleBytes) != 0) {
            attempt = std::make_unique<Attempt>();
            std::memcpy(attempt->given, handle, kNetHandleBytes);
            std::memcpy(attempt->handle, handle, kNetHandleBytes);
        }
        return attempt.get();
    }
    void forget(const void* handle) {
        const std::lock_guard lock(mutex_);
        attempts_.erase(handle);
    }

    const EngineParts& parts_;
    const std::vector<WireDevice>& devices_;
    std::unique_ptr<WireContext> wire_;
    std::mutex mutex_;
    std::map<const void*, std::unique_ptr<Attempt>> attempts_;
};

class EngineOverWire final : public Engine {
  public:
    EngineOverWire(std::unique_ptr<Wire> wire, const EngineSettings& settings, Traffic* traffic)
        : pool_(settings.threads),
          parts_{settings, &pool_, traffic != nullptr ? traffic : &own_traffic_},
          wire_(std::move(wire)) {
        for (int index = 0; index < wire_->devices(); ++index) {
            devices_.push_back(wire_->device(index));
        }
    }

    [[nodiscard]] int devices() const noexcept override {
        return static_cast<int>(devices_.size());
    }
    [[nodiscard]] const WireDevice& device(int index) const noexcept override {
        return devices_[static_cast<size_t>(index)];
    }
    Status open(uint64_t comm_id, int traffic_class, std::unique_ptr<Context>* context) override {
        std::unique_ptr<WireContext> wire;
        SLIMWIRE_TRY(wire_->open(comm_id, traffic_class, &wire));
        *context = std::make_unique<EngineContext>(parts_, devices_, std::move(wire));
        return {};
    }

  private:
    CodecPool pool_;
    Traffic own_traffic_;
    EngineParts parts_;
    std::unique_ptr<Wire> wire_;
    std::vector<WireDevice> devices_;
};

}  // namespace

std::unique_ptr<Engine> make_engine(std::unique_ptr<Wire> wire,
                                    const EngineSettings& settings,
                                    Traffic* traffic) {
    return std::make_unique<EngineOverWire>(std::move(wire), settings, traffic);
}

}  // namespace slimwire::net
