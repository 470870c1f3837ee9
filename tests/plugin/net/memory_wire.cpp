#include "tests/plugin/net/memory_wire.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace slimwire::net {
namespace {

using Clock = std::chrono::steady_clock;

struct MemoryBlock {
    const uint8_t* data;
    size_t bytes;
};

struct Operation {
    Lane lane;
    uint8_t* data;
    size_t bytes;  // of the message; of a receive the capacity until it is done
    const MemoryBlock* memory = nullptr;  // null: not registered
    bool done = false;
    Status failure{};
};

struct Message {
    uint64_t number;
    const uint8_t* data;
    size_t bytes;
    std::vector<uint8_t> copy;    // eager messages
    Operation* sender = nullptr;  // the others
    size_t moved = 0;
    Clock::time_point due;
};

// What the two ends of a connection share.
struct Channel {
    std::mutex mutex;
    bool sender_open = true;
    bool receiver_open = true;
    Status failure{};
    Word word;          // the receiver's latest
    uint64_t sent = 0;  // messages of both lanes
    uint64_t sent_of[kLanes] = {};
    std::deque<Message> messages[kLanes];
    std::deque<Operation*> receives[kLanes];
};

class Network;

struct ListenerState {
    std::deque<std::shared_ptr<Channel>> waiting;
};

struct HandleBytes {
    uint64_t magic;
    uint64_t listener;
};
constexpr uint64_t kMagic = 0x6d656d6f72793031;

class Network : public MemoryNetwork, public std::enable_shared_from_this<Network> {
  public:
    explicit Network(MemoryWireOptions given) : options(std::move(given)) {}

    std::unique_ptr<Wire> wire() override;
    const MemoryWireCounts& counts() const override { return count; }
    void kill_connections() override;
    long violations() const override {
        const std::lock_guard lock(rules_mutex);
        return broken_rules;
    }
    std::string first_violation() const override {
        const std::lock_guard lock(rules_mutex);
        return first_broken_rule;
    }
    void violation(const std::string& text) {
        const std::lock_guard lock(rules_mutex);
        if (broken_rules++ == 0) {
            first_broken_rule = text;
        }
    }

    MemoryWireOptions options;
    MemoryWireCounts count;
    std::mutex mutex;  // of what follows; taken before a channel's
    std::map<uint64_t, ListenerState> listeners;
    std::vector<std::weak_ptr<Channel>> channels;
    uint64_t next_listener = 1;
    mutable std::mutex rules_mutex;  // taken last
    long broken_rules = 0;
    std::string first_broken_rule;
};

// One end of a connection; End is SendWire or ReceiveWire.
template <class End>
class Side : public End {
  public:
    Side(std::shared_ptr<Network> network, std::shared_ptr<Channel> channel, bool sending)
        : network_(std::move(network)), channel_(std::move(channel)), sending_(sending) {
        ++network_->count.connections;
    }
    ~Side() override {
        drop();
        network_->count.memories -= static_cast<long>(memories_.size());
        for (MemoryBlock* memory : memories_) {
            delete memory;
        }
        --network_->count.connections;
    }

    void drop() noexcept override {
        const Busy busy(this);
        const std::lock_guard lock(channel_->mutex);
        (sending_ ? channel_->sender_open : channel_->receiver_open) = false;
        for (Operation* operation : operations_) {
            unlink(operation);
            delete operation;
        }
        network_->count.requests -= static_cast<long>(operations_.size());
        operations_.clear();
        dropped_ = true;
    }

    Status register_memory(void* data, size_t bytes, MemoryKind, WireMemory** memory) override {
        const Busy busy(this);
        check_open();
        auto* block = new MemoryBlock{static_cast<const uint8_t*>(data), bytes};
        memories_.insert(block);
        ++network_->count.memories;
        *memory = reinterpret_cast<WireMemory*>(block);
        return {};
    }

    Status deregister_memory(WireMemory* memory) override {
        const Busy busy(this);
        auto* block = reinterpret_cast<MemoryBlock*>(memory);
        if (memories_.erase(block) == 0) {
            network_->violation("deregistered memory that is not registered");
            return {Code::kInvalidArgument, "memory wire: not registered"};
        }
        for (const Operation* operation : operations_) {
            if (!operation->done && operation->memory == block) {
                network_->violation("deregistered memory that a request in flight uses");
            }
        }
        delete block;
        --network_->count.memories;
        return {};
    }

    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        const Busy busy(this);
        check_open();
        auto* operation = reinterpret_cast<Operation*>(request);
        if (operations_.count(operation) == 0) {
            network_->violation("tested a request that is over or of another connection");
            return {Code::kInternalError, "memory wire: unknown request"};
        }
        const std::lock_guard lock(channel_->mutex);
        advance();
        Status status = operation->failure.ok() ? channel_->failure : operation->failure;
        if (status.ok() && !operation->done && lost(operation->lane)) {
            status = Status(Code::kRemoteError, "memory wire: the peer has closed");
        }
        if (operation->done) {
            status = Status();
        }
        *done = operation->done;
        if (operation->done && bytes != nullptr) {
            *bytes = operation->bytes;
        }
        if (operation->done || !status.ok()) {
            release(operation);
        }
        return status;
    }

    const std::string& peer() const noexcept override { return peer_; }

  protected:
    // Notes a second thread in the connection.
    class Busy {
      public:
        explicit Busy(Side* side) : side_(side) {
            if (side_->busy_.exchange(true)) {
                side_->network_->violation("two threads in one connection");
            }
        }
        ~Busy() { side_->busy_ = false; }
        Busy(const Busy&) = delete;
        Busy& operator=(const Busy&) = delete;

      private:
        Side* side_;
    };

    Operation* start(Lane lane, uint8_t* data, size_t bytes, WireMemory* memory) {
        auto* operation = new Operation{lane, data, bytes};
        operation->memory = reinterpret_cast<MemoryBlock*>(memory);
        operations_.insert(operation);
        ++network_->count.requests;
        return operation;
    }

    void check_open() {
        if (dropped_) {
            network_->violation("a call after drop");
        }
    }

    void check_memory(const void* data, size_t bytes, WireMemory* memory) {
        auto* block = reinterpret_cast<MemoryBlock*>(memory);
        if (block == nullptr || bytes == 0) {
            return;
        }
        const auto* begin = static_cast<const uint8_t*>(data);
        if (memories_.count(block) == 0 || begin < block->data ||
            begin + bytes > block->data + block->bytes) {
            network_->violation("a buffer lies outside its registered memory");
        }
    }

    // Moves what can move in both lanes; the channel is locked.
    void advance() {
        size_t budget = network_->options.bytes_per_call;
        for (int lane = 0; lane < kLanes && channel_->failure.ok(); ++lane) {
            auto& messages = channel_->messages[lane];
            auto& receives = channel_->receives[lane];
            while (!messages.empty() && !receives.empty() && Clock::now() >= messages[0].due) {
                Message& message = messages.front();
                Operation& receive = *receives.front();
                if (message.bytes > receive.bytes) {
                    receive.failure =
                        Status(Code::kInvalidArgument,
                               "memory wire: a message of " + std::to_string(message.bytes) +
                                   " bytes came for a receive of " + std::to_string(receive.bytes));
                    channel_->failure = Status(Code::kRemoteError, "memory wire: the peer failed");
                    break;
                }
                const size_t count = std::min(budget, message.bytes - message.moved);
                if (count > 0) {
                    std::memcpy(receive.data + message.moved, message.data + message.moved, count);
                }
                message.moved += count;
                budget -= count;
                if (message.moved < message.bytes) {
                    return;
                }
                finish(message, receive);
                messages.pop_front();
                receives.pop_front();
            }
        }
    }

    std::shared_ptr<Network> network_;
    std::shared_ptr<Channel> channel_;
    bool sending_;
    int calls_ = 0;
    std::string peer_ = "memory";

  private:
    friend class Busy;

    void finish(Message& message, Operation& receive) {
        size_t bytes = message.bytes;
        if (network_->options.tamper) {
            network_->options.tamper(receive.lane, message.number, receive.data, &bytes);
        }
        receive.bytes = std::min(bytes, message.bytes);
        receive.done = true;
        if (message.sender != nullptr) {
            message.sender->done = true;
        }
    }

    // Whether nothing can come of an operation any more; the channel is locked.
    [[nodiscard]] bool lost(Lane lane) const {
        return sending_
                   ? !channel_->receiver_open
                   : !channel_->sender_open && channel_->messages[static_cast<int>(lane)].empty();
    }

    void unlink(Operation* operation) {
        for (int lane = 0; lane < kLanes; ++lane) {
            std::erase(channel_->receives[lane], operation);
            std::erase_if(channel_->messages[lane],
                          [&](const Message& m) { return m.sender == operation; });
        }
    }

    void release(Operation* operation) {
        unlink(operation);
        operations_.erase(operation);
        delete operation;
        --network_->count.requests;
    }

    std::atomic<bool> busy_{false};
    bool dropped_ = false;
    std::set<Operation*> operations_;
    std::set<MemoryBlock*> memories_;
};

class Sender : public Side<SendWire> {
  public:
    using Side::Side;

    [[nodiscard]] Word word() noexcept override {
        const std::lock_guard lock(channel_->mutex);
        return channel_->word;
    }

    Status send(Lane lane,
                const void* data,
                size_t bytes,
                WireMemory* memory,
                WireRequest** request) override {
        const Busy busy(this);
        check_open();
        check_memory(data, bytes, memory);
        *request = nullptr;
        const MemoryWireOptions& options = network_->options;
        const int index = static_cast<int>(lane);
        const std::lock_guard lock(channel_->mutex);
        if (lane == Lane::kControl && bytes > kControlBytes) {
            network_->violation("a control message is too long");
        }
        if (channel_->sent == static_cast<uint64_t>(options.kill_at_message)) {
            channel_->failure = Status(Code::kRemoteError, "memory wire: the peer died");
        }
        if (!channel_->failure.ok()) {
            return channel_->failure;
        }
        if (!channel_->receiver_open) {
            return {Code::kRemoteError, "memory wire: the peer has closed"};
        }
        auto& messages = channel_->messages[index];
        const bool full =
            lane == Lane::kControl && messages.size() >= static_cast<size_t>(kControlSlots);
        if (full || (options.refuse_send_every > 0 && ++calls_ % options.refuse_send_every == 0)) {
            return {};
        }
        auto* bytes_in = static_cast<uint8_t*>(const_cast<void*>(data));
        Operation* operation = start(lane, bytes_in, bytes, memory);
        Message message{channel_->sent_of[index]++,
                        bytes_in,
                        bytes,
                        {},
                        operation,
                        0,
                        Clock::now() + std::chrono::nanoseconds(options.delay_ns)};
        if (bytes <= options.eager_bytes) {
            message.copy.assign(bytes_in, bytes_in + bytes);
            message.data = message.copy.data();
            message.sender = nullptr;
            operation->done = true;
        }
        messages.push_back(std::move(message));
        ++channel_->sent;
        ++network_->count.messages[index];
        network_->count.bytes[index] += bytes;
        advance();
        *request = reinterpret_cast<WireRequest*>(operation);
        return {};
    }
};

class Receiver : public Side<ReceiveWire> {
  public:
    using Side::Side;

    void tell(const Word& word) noexcept override {
        const std::lock_guard lock(channel_->mutex);
        channel_->word = word;
    }

    Status receive(Lane lane,
                   void* data,
                   size_t capacity,
                   WireMemory* memory,
                   WireRequest** request) override {
        const Busy busy(this);
        check_open();
        check_memory(data, capacity, memory);
        *request = nullptr;
        const int every = network_->options.refuse_receive_every;
        const std::lock_guard lock(channel_->mutex);
        if (!channel_->failure.ok()) {
            return channel_->failure;
        }
        if (every > 0 && ++calls_ % every == 0) {
            return {};
        }
        Operation* operation = start(lane, static_cast<uint8_t*>(data), capacity, memory);
        channel_->receives[static_cast<int>(lane)].push_back(operation);
        advance();
        *request = reinterpret_cast<WireRequest*>(operation);
        return {};
    }
};

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
        *wire = std::make_unique<Receiver>(network_, channel, false);
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
        *wire = std::make_unique<Sender>(network_, channel, true);
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

}  // namespace

std::shared_ptr<MemoryNetwork> MemoryNetwork::make(MemoryWireOptions options) {
    return std::make_shared<Network>(std::move(options));
}

}  // namespace slimwire::net
