#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "tests/plugin/net/memory_wire.h"

namespace slimwire::net::memory {
namespace {

// One end of a connection; End is SendWire or ReceiveWire.
template <class End>
class Side : public End {
  public:
    Side(std::shared_ptr<MemoryNetwork> network, std::shared_ptr<Channel> channel, bool sending)
        : network_(std::move(network)), channel_(std::move(channel)), sending_(sending) {
        ++network_->counts.connections;
    }
    ~Side() override {
        drop();
        network_->counts.memories -= static_cast<long>(memories_.size());
        for (MemoryBlock* memory : memories_) {
            delete memory;
        }
        --network_->counts.connections;
    }

    void drop() noexcept override {
        const Busy busy(this);
        const std::lock_guard lock(channel_->mutex);
        (sending_ ? channel_->sender_open : channel_->receiver_open) = false;
        for (Operation* operation : operations_) {
            unlink(operation);
            delete operation;
        }
        network_->counts.requests -= static_cast<long>(operations_.size());
        operations_.clear();
        dropped_ = true;
    }

    Status register_memory(void* data, size_t bytes, WireMemory** memory) override {
        const Busy busy(this);
        check_open();
        SLIMWIRE_TRY(network_->called());
        auto* block = new MemoryBlock{static_cast<const uint8_t*>(data), bytes};
        memories_.insert(block);
        ++network_->counts.memories;
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
        --network_->counts.memories;
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
        ++network_->counts.requests;
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

    std::shared_ptr<MemoryNetwork> network_;
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
        --network_->counts.requests;
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
        SLIMWIRE_TRY(network_->called());
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
        network_->counts.bytes[index] += bytes;
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

}  // namespace

std::unique_ptr<SendWire> make_sender(std::shared_ptr<MemoryNetwork> network,
                                      std::shared_ptr<Channel> channel) {
    return std::make_unique<Sender>(std::move(network), std::move(channel), true);
}
std::unique_ptr<ReceiveWire> make_receiver(std::shared_ptr<MemoryNetwork> network,
                                           std::shared_ptr<Channel> channel) {
    return std::make_unique<Receiver>(std::move(network), std::move(channel), false);
}

}  // namespace slimwire::net::memory
