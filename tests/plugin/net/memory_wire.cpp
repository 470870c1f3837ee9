#include "tests/plugin/net/memory_wire.h"

#include <cstring>
#include <utility>

#include "tests/plugin/net/memory_network.h"

namespace slimwire::net {
namespace memory {
namespace {

class Listener : public WireListener {
  public:
    Listener(std::shared_ptr<Network> network, uint64_t id)
        : network_(std::move(network)), id_(id) {
        ++network_->count.listeners;
    }
    ~Listener() override {
        const std::lock_guard lock(network_->mutex);
        for (auto& channel : network_->listeners[id_].waiting) {
            const std::lock_guard channel_lock(channel->mutex);
            channel->receiver_open = false;
        }
        network_->listeners.erase(id_);
        --network_->count.listeners;
    }
    Status accept(std::unique_ptr<ReceiveWire>* wire) override {
        std::shared_ptr<Channel> channel;
        {
            const std::lock_guard lock(network_->mutex);
            auto& waiting = network_->listeners[id_].waiting;
            if (waiting.empty()) {
                wire->reset();
                return {};
            }
            channel = std::move(waiting.front());
            waiting.pop_front();
        }
        *wire = make_receiver(network_, channel);
        return {};
    }

  private:
    std::shared_ptr<Network> network_;
    uint64_t id_;
};

class Attempt : public WireConnecting {
  public:
    explicit Attempt(std::shared_ptr<Network> network) : network_(std::move(network)) {
        ++network_->count.attempts;
    }
    ~Attempt() override { --network_->count.attempts; }
    int polls = 0;

  private:
    std::shared_ptr<Network> network_;
};

class Context : public WireContext {
  public:
    explicit Context(std::shared_ptr<Network> network) : network_(std::move(network)) {
        ++network_->count.contexts;
    }
    ~Context() override { --network_->count.contexts; }

    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        if (device < 0 || device >= network_->options.devices) {
            return {Code::kInvalidArgument, "memory wire: no device " + std::to_string(device)};
        }
        uint64_t id = 0;
        {
            const std::lock_guard lock(network_->mutex);
            id = network_->next_listener++;
            network_->listeners[id];
        }
        const HandleBytes bytes{kMagic, id};
        std::memcpy(handle, &bytes, sizeof bytes);
        *listener = std::make_unique<Listener>(network_, id);
        return {};
    }

    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        wire->reset();
        HandleBytes bytes{};
        std::memcpy(&bytes, handle, sizeof bytes);
        if (device < 0 || device >= network_->options.devices || bytes.magic != kMagic) {
            return {Code::kInvalidArgument, "memory wire: no such device or handle"};
        }
        if (*attempt == nullptr) {
            *attempt = std::make_unique<Attempt>(network_);
        }
        if (static_cast<Attempt&>(**attempt).polls++ < network_->options.connect_polls) {
            return {};
        }
        auto channel = std::make_shared<Channel>();
        {
            const std::lock_guard lock(network_->mutex);
            const auto found = network_->listeners.find(bytes.listener);
            if (found == network_->listeners.end()) {
                return {Code::kRemoteError, "memory wire: nobody listens"};
            }
            found->second.waiting.push_back(channel);
            network_->channels.push_back(channel);
        }
        attempt->reset();
        *wire = make_sender(network_, channel);
        return {};
    }

  private:
    std::shared_ptr<Network> network_;
};

class MemoryWire : public Wire {
  public:
    explicit MemoryWire(std::shared_ptr<Network> network) : network_(std::move(network)) {}
    int devices() const noexcept override { return network_->options.devices; }
    const WireDevice& device(int) const noexcept override { return network_->options.device; }
    Status open(uint64_t, int, std::unique_ptr<WireContext>* context) override {
        *context = std::make_unique<Context>(network_);
        return {};
    }

  private:
    std::shared_ptr<Network> network_;
};

}  // namespace

std::unique_ptr<Wire> Network::wire() {
    return std::make_unique<MemoryWire>(shared_from_this());
}

void Network::kill_connections() {
    const std::lock_guard lock(mutex);
    for (const auto& weak : channels) {
        if (const auto channel = weak.lock()) {
            const std::lock_guard channel_lock(channel->mutex);
            channel->failure = Status(Code::kRemoteError, "memory wire: the peer died");
        }
    }
}

}  // namespace memory

std::shared_ptr<MemoryNetwork> MemoryNetwork::make(MemoryWireOptions options) {
    return std::make_shared<memory::Network>(std::move(options));
}

}  // namespace slimwire::net
