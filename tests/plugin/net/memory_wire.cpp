#include "tests/plugin/net/memory_wire.h"

#include <cstring>
#include <utility>

namespace slimwire::net {
namespace memory {
namespace {

class Listener : public WireListener {
  public:
    Listener(std::shared_ptr<MemoryNetwork> network, uint64_t id)
        : network_(std::move(network)), id_(id) {
        ++network_->counts.listeners;
    }
    ~Listener() override {
        const std::lock_guard lock(network_->mutex);
        for (auto& channel : network_->waiting[id_]) {
            const std::lock_guard channel_lock(channel->mutex);
            channel->receiver_open = false;
        }
        network_->waiting.erase(id_);
        --network_->counts.listeners;
    }
    Status accept(std::unique_ptr<ReceiveWire>* wire) override {
        SLIMWIRE_TRY(network_->called());
        std::shared_ptr<Channel> channel;
        {
            const std::lock_guard lock(network_->mutex);
            auto& waiting = network_->waiting[id_];
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
    std::shared_ptr<MemoryNetwork> network_;
    uint64_t id_;
};

class Attempt : public WireConnecting {
  public:
    explicit Attempt(std::shared_ptr<MemoryNetwork> network) : network_(std::move(network)) {
        ++network_->counts.attempts;
    }
    ~Attempt() override { --network_->counts.attempts; }
    int polls = 0;

  private:
    std::shared_ptr<MemoryNetwork> network_;
};

class Context : public WireContext {
  public:
    explicit Context(std::shared_ptr<MemoryNetwork> network) : network_(std::move(network)) {
        ++network_->counts.contexts;
    }
    ~Context() override { --network_->counts.contexts; }

    Status listen(int, void* handle, std::unique_ptr<WireListener>* listener) override {
        SLIMWIRE_TRY(network_->called());
        uint64_t id = 0;
        {
            const std::lock_guard lock(network_->mutex);
            id = network_->next_listener++;
            network_->waiting[id];
        }
        const HandleBytes bytes{kMagic, id};
        std::memcpy(handle, &bytes, sizeof bytes);
        *listener = std::make_unique<Listener>(network_, id);
        return {};
    }

    Status connect(int,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        SLIMWIRE_TRY(network_->called());
        wire->reset();
        HandleBytes bytes{};
        std::memcpy(&bytes, handle, sizeof bytes);
        if (bytes.magic != kMagic) {
            return {Code::kInvalidArgument, "memory wire: no such handle"};
        }
        if (*attempt == nullptr) {
            *attempt = std::make_unique<Attempt>(network_);
        }
        if (static_cast<Attempt&>(**attempt).polls++ < 2) {  // "not yet"
            return {};
        }
        auto channel = std::make_shared<Channel>();
        {
            const std::lock_guard lock(network_->mutex);
            const auto found = network_->waiting.find(bytes.listener);
            if (found == network_->waiting.end()) {
                return {Code::kRemoteError, "memory wire: nobody listens"};
            }
            found->second.push_back(channel);
        }
        attempt->reset();
        *wire = make_sender(network_, channel);
        return {};
    }

  private:
    std::shared_ptr<MemoryNetwork> network_;
};

class MemoryWire : public Wire {
  public:
    explicit MemoryWire(std::shared_ptr<MemoryNetwork> network) : network_(std::move(network)) {}
    int devices() const noexcept override { return 1; }
    const WireDevice& device(int) const noexcept override { return network_->options.device; }
    Status open(uint64_t comm_id,
                int traffic_class,
                std::unique_ptr<WireContext>* context) override {
        SLIMWIRE_TRY(network_->called());
        network_->comm_id = comm_id;
        network_->traffic_class = traffic_class;
        *context = std::make_unique<Context>(network_);
        return {};
    }

  private:
    std::shared_ptr<MemoryNetwork> network_;
};

}  // namespace

}  // namespace memory

std::unique_ptr<Wire> MemoryNetwork::wire() {
    return std::make_unique<memory::MemoryWire>(shared_from_this());
}

}  // namespace slimwire::net
