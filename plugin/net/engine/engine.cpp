#include "plugin/net/engine.h"

#include <cstring>
#include <string>
#include <utility>

namespace slimwire::net {

Status Listener::accept(std::unique_ptr<ReceiveConnection>* connection) {
    std::unique_ptr<ReceiveWire> wire;
    SLIMWIRE_TRY(wire_->accept(&wire));
    if (wire != nullptr) {
        wire = throttled(std::move(wire), engine_.throttle(device_));
        SLIMWIRE_TRY_ASSIGN(
            *connection,
            ReceiveConnection::make(network_, std::move(wire),
                                    engine_.device(static_cast<int>(device_)).name.c_str()));
    }
    return {};
}

Status Context::listen(int device, void* handle, std::unique_ptr<Listener>* listener) {
    SLIMWIRE_TRY(engine_.check_device(device));
    std::unique_ptr<WireListener> wire;
    SLIMWIRE_TRY(network_->wire->listen(device, handle, &wire));
    *listener =
        std::make_unique<Listener>(engine_, network_, std::move(wire), static_cast<size_t>(device));
    return {};
}

Status Context::connect(int device, void* handle, std::unique_ptr<SendConnection>* connection) {
    SLIMWIRE_TRY(engine_.check_device(device));
    Attempt* const attempt = attempt_of(handle);
    std::unique_ptr<SendWire> wire;
    const Status status = network_->wire->connect(device, attempt->handle, &attempt->wire, &wire);
    if (status.ok() && wire == nullptr) {
        return {};
    }
    {
        const std::lock_guard lock(mutex_);
        attempts_.erase(handle);
    }
    SLIMWIRE_TRY(status);
    wire = throttled(std::move(wire), engine_.throttle(static_cast<size_t>(device)));
    SLIMWIRE_TRY_ASSIGN(*connection, SendConnection::make(network_, std::move(wire),
                                                          engine_.device(device).name.c_str()));
    return {};
}

Context::Attempt* Context::attempt_of(const void* handle) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Attempt>& attempt = attempts_[handle];
    if (attempt == nullptr || std::memcmp(attempt->given, handle, kNetHandleBytes) != 0) {
        attempt = std::make_unique<Attempt>();
        std::memcpy(attempt->given, handle, kNetHandleBytes);
        std::memcpy(attempt->handle, handle, kNetHandleBytes);
    }
    return attempt.get();
}

Engine::Engine(std::unique_ptr<Wire> wire, const EngineSettings& settings, Traffic* traffic)
    : pool_(settings.threads),
      parts_{settings, &pool_, traffic != nullptr ? traffic : &own_traffic_},
      wire_(std::move(wire)) {
    const bool slower = settings.rate_bytes_per_s > 0 || settings.latency_ns > 0;
    for (int index = 0; index < wire_->devices(); ++index) {
        devices_.push_back(wire_->device(index));
        throttles_.push_back(
            slower ? make_throttle(settings.rate_bytes_per_s, settings.latency_ns, &devices_.back())
                   : nullptr);
    }
}

Status Engine::open(uint64_t comm_id, int traffic_class, std::unique_ptr<Context>* context) {
    std::unique_ptr<WireContext> wire;
    SLIMWIRE_TRY(wire_->open(comm_id, traffic_class, &wire));
    *context = std::make_unique<Context>(*this, std::make_shared<Network>(parts_, std::move(wire)));
    return {};
}

Status Engine::check_device(int index) const {
    return index >= 0 && index < devices()
               ? Status()
               : Status(Code::kInvalidArgument, "no network device " + std::to_string(index) +
                                                    "; there are " + std::to_string(devices()));
}

}  // namespace slimwire::net
