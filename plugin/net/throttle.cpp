#include "plugin/net/throttle.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace slimwire::net {
namespace {

// When the last bit of each message passes, at a fixed rate, one message after the other.
class Bucket {
  public:
    explicit Bucket(double ns_per_byte) : ns_per_byte_(ns_per_byte) {}
    // `earliest` is when its first bit can pass at the earliest.
    double pass(double earliest, size_t bytes) {
        const std::lock_guard lock(mutex_);
        free_at_ = std::max(free_at_, earliest) + static_cast<double>(bytes) * ns_per_byte_;
        return free_at_;
    }
    [[nodiscard]] double duration(size_t bytes) const {
        return static_cast<double>(bytes) * ns_per_byte_;
    }

  private:
    const double ns_per_byte_;
    std::mutex mutex_;
    double free_at_ = 0;
};

}  // namespace

class Throttle {
  public:
    Throttle(double ns_per_byte, double latency, ThrottleClock clock)
        : leaving(ns_per_byte), coming(ns_per_byte), latency_ns(latency), now(clock) {}
    Bucket leaving, coming;
    const double latency_ns;
    const ThrottleClock now;
};

namespace {

struct Operation {
    WireRequest* inner = nullptr;
    // Sends until they are handed over.
    Lane lane = Lane::kData;
    const void* data = nullptr;
    size_t bytes = 0;
    WireMemory* memory = nullptr;
    double due = 0;
    // Receives: when it was last not there, and when it may be shown.
    double absent_at = 0;
    double shown_at = 0;
    bool came = false;
};

// What both ends have: calls that pass through, and the operations that are not over.
template <class End>
class Side : public End {
  public:
    Side(std::unique_ptr<End> inner, std::shared_ptr<Throttle> throttle)
        : inner_(std::move(inner)), throttle_(std::move(throttle)) {}

    void drop() noexcept override {
        inner_->drop();
        operations_.clear();
    }
    Status register_memory(void* data, size_t bytes, WireMemory** memory) override {
        return inner_->register_memory(data, bytes, memory);
    }
    Status deregister_memory(WireMemory* memory) override {
        return inner_->deregister_memory(memory);
    }
    [[nodiscard]] const std::string& peer() const noexcept override { return inner_->peer(); }

  protected:
    static WireRequest* request_of(Operation* operation) {
        return reinterpret_cast<WireRequest*>(operation);
    }
    Operation* keep(Operation operation) {
        auto made = std::make_unique<Operation>(operation);
        Operation* const kept = made.get();
        operations_.emplace(kept, std::move(made));
        return kept;
    }
    void release(Operation* operation) { operations_.erase(operation); }

    std::unique_ptr<End> inner_;
    std::shared_ptr<Throttle> throttle_;

  private:
    std::unordered_map<Operation*, std::unique_ptr<Operation>> operations_;
};

class ThrottledSend final : public Side<SendWire> {
  public:
    using Side::Side;
    [[nodiscard]] Word word() noexcept override { return inner_->word(); }

    Status send(Lane lane,
                const void* data,
                size_t bytes,
                WireMemory* memory,
                WireRequest** request) override {
        *request = nullptr;
        SLIMWIRE_TRY(hand_over());
        // What waits here is bounded like what waits in a wire.
        if (lane == Lane::kControl && queue(lane).size() >= static_cast<size_t>(kControlSlots)) {
            return {};
        }
        Operation operation;
        operation.lane = lane;
        operation.data = data;
        operation.bytes = bytes;
        operation.memory = memory;
        operation.due = throttle_->leaving.pass(throttle_->now(), bytes) + throttle_->latency_ns;
        Operation* kept = keep(operation);
        queue(lane).push_back(kept);
        *request = request_of(kept);
        return {};
    }

    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        auto* operation = reinterpret_cast<Operation*>(request);
        *done = false;
        Status status = hand_over();
        if (status.ok() && operation->inner != nullptr) {
            status = inner_->test(operation->inner, done, bytes);
        }
        if (*done || !status.ok()) {
            std::erase(queue(operation->lane), operation);
            release(operation);
        }
        return status;
    }

  private:
    std::deque<Operation*>& queue(Lane lane) { return queues_[static_cast<int>(lane)]; }

    // Gives the inner wire what is due; a failure stays.
    Status hand_over() {
        SLIMWIRE_TRY(failure_);
        for (auto& waiting : queues_) {
            while (!waiting.empty()) {
                Operation& front = *waiting.front();
                if (front.due > throttle_->now()) {
                    break;
                }
                failure_ =
                    inner_->send(front.lane, front.data, front.bytes, front.memory, &front.inner);
                SLIMWIRE_TRY(failure_);
                if (front.inner == nullptr) {
                    break;
                }
                waiting.pop_front();
            }
        }
        return {};
    }

    std::deque<Operation*> queues_[kLanes];  // nobody looks after drop()
    Status failure_;
};

class ThrottledReceive final : public Side<ReceiveWire> {
  public:
    using Side::Side;
    void tell(const Word& word) noexcept override { inner_->tell(word); }

    Status receive(Lane lane,
                   void* data,
                   size_t capacity,
                   WireMemory* memory,
                   WireRequest** request) override {
        *request = nullptr;
        Operation operation;
        SLIMWIRE_TRY(inner_->receive(lane, data, capacity, memory, &operation.inner));
        if (operation.inner != nullptr) {
            operation.absent_at = throttle_->now();
            *request = request_of(keep(operation));
        }
        return {};
    }

    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        auto* operation = reinterpret_cast<Operation*>(request);
        *done = false;
        if (!operation->came) {
            const Status status =
                inner_->test(operation->inner, &operation->came, &operation->bytes);
            if (!status.ok()) {
                release(operation);
                return status;
            }
            const double now = throttle_->now();
            if (!operation->came) {
                operation->absent_at = now;
                return {};
            }
            // It may have come at any time since the last look, and its bits before.
            operation->shown_at = throttle_->coming.pass(
                operation->absent_at - throttle_->coming.duration(operation->bytes),
                operation->bytes);
        }
        if (operation->shown_at <= throttle_->now()) {
            *done = true;
            if (bytes != nullptr) {
                *bytes = operation->bytes;
            }
            release(operation);
        }
        return {};
    }
};

}  // namespace

// A double holds them exactly for a hundred days of uptime.
double throttle_ns() {
    return std::chrono::duration<double, std::nano>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::shared_ptr<Throttle> make_throttle(double rate_bytes_per_s,
                                        uint64_t latency_ns,
                                        WireDevice* device,
                                        ThrottleClock clock) {
    if (device != nullptr && rate_bytes_per_s > 0) {
        const double mbps = std::max(1.0, rate_bytes_per_s * 8 / 1e6);
        device->speed_mbps =
            static_cast<int>(std::min(mbps, static_cast<double>(device->speed_mbps)));
    }
    if (device != nullptr) {
        device->latency_us += static_cast<float>(latency_ns) / 1000;
    }
    return std::make_shared<Throttle>(rate_bytes_per_s > 0 ? 1e9 / rate_bytes_per_s : 0,
                                      static_cast<double>(latency_ns), clock);
}

std::unique_ptr<SendWire> throttled(std::unique_ptr<SendWire> wire,
                                    std::shared_ptr<Throttle> throttle) {
    return throttle == nullptr
               ? std::move(wire)
               : std::make_unique<ThrottledSend>(std::move(wire), std::move(throttle));
}

std::unique_ptr<ReceiveWire> throttled(std::unique_ptr<ReceiveWire> wire,
                                       std::shared_ptr<Throttle> throttle) {
    return throttle == nullptr
               ? std::move(wire)
               : std::make_unique<ThrottledReceive>(std::move(wire), std::move(throttle));
}

}  // namespace slimwire::net
