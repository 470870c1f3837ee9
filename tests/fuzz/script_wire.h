// A network for the fuzz target of a net plugin's peer: it hands over what the input makes.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "plugin/net/wire.h"
#include "tests/fuzz/reader.h"

namespace slimwire::net {

// The network: messages that the input makes, given to receives in their order.
struct Script {
    std::deque<std::vector<uint8_t>> messages[kLanes];
    bool closed = false;
    size_t open = 0;  // receives
    bool dropped = false;
};

struct Receive {
    Lane lane;
    uint8_t* data;
    size_t capacity;
    uint64_t number;
};

class ScriptWire final : public ReceiveWire {
  public:
    explicit ScriptWire(Script* script) : script_(script) {}
    ~ScriptWire() override { drop(); }
    void drop() noexcept override {
        for (auto& lane : waiting_) {
            lane.clear();
        }
        script_->open = 0;
        script_->dropped = true;
    }
    Status register_memory(void*, size_t, WireMemory** memory) override {
        *memory = nullptr;
        return {};
    }
    Status deregister_memory(WireMemory*) override { return {}; }
    [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

    Status receive(
        Lane lane, void* data, size_t capacity, WireMemory*, WireRequest** request) override {
        *request = nullptr;
        const auto at = static_cast<size_t>(lane);
        if (script_->closed && script_->messages[at].size() <= waiting_[at].size()) {
            return {Code::kRemoteError, "the peer has closed"};
        }
        waiting_[at].push_back(std::make_unique<Receive>(
            Receive{lane, static_cast<uint8_t*>(data), capacity, next_[at]++}));
        ++script_->open;
        *request = reinterpret_cast<WireRequest*>(waiting_[at].back().get());
        return {};
    }
    // The oldest receive of a lane gets the oldest message; the engine asks for no other.
    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        auto* const asked = reinterpret_cast<Receive*>(request);
        const auto at = static_cast<size_t>(asked->lane);
        auto& messages = script_->messages[at];
        *done = false;
        if (waiting_[at].empty() || waiting_[at].front().get() != asked) {
            finding("a receive was asked for that is not the oldest of its lane");
        }
        if (messages.empty()) {
            return script_->closed ? Status(Code::kRemoteError, "the peer has closed") : Status();
        }
        const std::vector<uint8_t> message = std::move(messages.front());
        messages.pop_front();
        const size_t capacity = asked->capacity;
        if (message.size() <= capacity) {
            std::copy(message.begin(), message.end(), asked->data);
            *done = true;
            *bytes = message.size();
        }
        waiting_[at].pop_front();
        --script_->open;
        return *done ? Status()
                     : Status(Code::kInvalidArgument, "a message larger than its receive");
    }

  private:
    Script* const script_;
    std::deque<std::unique_ptr<Receive>> waiting_[kLanes];
    uint64_t next_[kLanes] = {};
    const std::string peer_ = "script";
};

}  // namespace slimwire::net
