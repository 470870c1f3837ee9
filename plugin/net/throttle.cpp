#include "plugin/net/throttle.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_set>
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

struct Shaped {
    Shaped(double ns_per_byte, double latency, ThrottleClock clock)
        : leaving(ns_per_byte), coming(ns_per_byte), latency_ns(latency), now(clock) {}
    Bucket leaving, coming;
    const double latency_ns;
    const ThrottleClock now;
};

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
    Side(std::unique_ptr<End> inner, std::shared_ptr<Shaped> shaped)
        : inner_(std::move(inner)), shaped_(std::move(shaped)) {}
    ~Side() override { release_all(); }

    void drop() noexcept override {
        inner_->drop();
        release_all();
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
        auto* kept = new Operation(operation);
        operations_.insert(kept);
        return kept;
    }
    void release(Operation* operation) {
        operations_.erase(operation);
        delete operation;
    }
    virtual void forget_queued() noexcept {}
    void release_all() noexcept {
        forget_queued();
        for (Operation* operation : operations_) {
            delete operation;
        }
        operations_.clear();
    }

    std::unique_ptr<End> inner_;
    std::shared_ptr<Shaped> shaped_;

  private:
    std::unordered_set<Operation*> operations_;
};

class ThrottledSend final : public Side<SendWire> {
  public:
    using Side::Side;
    ~ThrottledSend() override { forget_queued(); }
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
        operation.due = shaped_->leaving.pass(shaped_->now(), bytes) + shaped_->latency_ns;
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
                if (front.due > shaped_->now()) {
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

    void forget_queued() noexcept override {
        for (auto& waiting : queues_) {
            waiting.clear();
        }
    }

    std::deque<Operation*> queues_[kLanes];
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
            operation.absent_at = shaped_->now();
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
            const double now = shaped_->now();
            if (!operation->came) {
                operation->absent_at = now;
                return {};
            }
            // It may have come at any time since the last look, and its bits before.
            operation->shown_at = shaped_->coming.pass(
                operation->absent_at - shaped_->coming.duration(operation->bytes),
                operation->bytes);
        }
        if (operation->shown_at <= shaped_->now()) {
            *done = true;
            if (bytes != nullptr) {
                *bytes = operation->bytes;
            }
            release(operation);
        }
        return {};
    }
};

class ThrottledListener final : public WireListener {
  public:
    ThrottledListener(std::unique_ptr<WireListener> inner, std::shared_ptr<Shaped> shaped)
        : inner_(std::move(inner)), shaped_(std::move(shaped)) {}
    Status accept(std::unique_ptr<ReceiveWire>* wire) override {
        std::unique_ptr<ReceiveWire> plain;
        SLIMWIRE_TRY(inner_->accept(&plain));
        wire->reset();
        if (plain != nullptr) {
            *wire = std::make_unique<ThrottledReceive>(std::move(plain), shaped_);
        }
        return {};
    }

  private:
    std::unique_ptr<WireListener> inner_;
    std::shared_ptr<Shaped> shaped_;
};

using Devices = std::vector<std::shared_ptr<Shaped>>;

class ThrottledContext final : public WireContext {
  public:
    ThrottledContext(std::unique_ptr<WireContext> inner, Devices devices)
        : inner_(std::move(inner)), devices_(std::move(devices)) {}
    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        SLIMWIRE_TRY(check(device));
        std::unique_ptr<WireListener> plain;
        SLIMWIRE_TRY(inner_->listen(device, handle, &plain));
        *listener = std::make_unique<ThrottledListener>(std::move(plain),
                                                        devices_[static_cast<size_t>(device)]);
        return {};
    }
    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        SLIMWIRE_TRY(check(device));
        std::unique_ptr<SendWire> plain;
        SLIMWIRE_TRY(inner_->connect(device, handle, attempt, &plain));
        wire->reset();
        if (plain != nullptr) {
            *wire = std::make_unique<ThrottledSend>(std::move(plain),
                                                    devices_[static_cast<size_t>(device)]);
        }
        return {};
    }

  private:
    [[nodiscard]] Status check(int device) const {
        if (device < 0 || static_cast<size_t>(device) >= devices_.size()) {
            return {Code::kInvalidArgument, "no network device " + std::to_string(device) +
                                                "; there are " + std::to_string(devices_.size())};
        }
        return {};
    }
    std::unique_ptr<WireContext> inner_;
    Devices devices_;
};

class ThrottledWire final : public Wire {
  public:
    ThrottledWire(std::unique_ptr<Wire> inner,
                  double rate,
                  uint64_t latency_ns,
                  ThrottleClock clock)
        : inner_(std::move(inner)) {
        for (int i = 0; i < inner_->devices(); ++i) {
            shaped_.push_back(std::make_shared<Shaped>(rate > 0 ? 1e9 / rate : 0,
                                                       static_cast<double>(latency_ns), clock));
            WireDevice device = inner_->device(i);
            if (rate > 0) {
                const double mbps = std::max(1.0, rate * 8 / 1e6);
                device.speed_mbps =
                    static_cast<int>(std::min(mbps, static_cast<double>(device.speed_mbps)));
            }
            device.latency_us += static_cast<float>(latency_ns) / 1000;
            described_.push_back(device);
        }
    }
    [[nodiscard]] int devices() const noexcept override {
        return static_cast<int>(described_.size());
    }
    [[nodiscard]] const WireDevice& device(int index) const noexcept override {
        return described_[static_cast<size_t>(index)];
    }
    Status open(uint64_t comm_id,
                int traffic_class,
                std::unique_ptr<WireContext>* context) override {
        std::unique_ptr<WireContext> plain;
        SLIMWIRE_TRY(inner_->open(comm_id, traffic_class, &plain));
        *context = std::make_unique<ThrottledContext>(std::move(plain), shaped_);
        return {};
    }
    void finish(int limit_ms) noexcept override { inner_->finish(limit_ms); }

  private:
    std::unique_ptr<Wire> inner_;
    Devices shaped_;
    std::vector<WireDevice> described_;
};

}  // namespace

// A double holds them exactly for a hundred days of uptime.
double throttle_ns() {
    return std::chrono::duration<double, std::nano>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::unique_ptr<Wire> make_throttled_wire(std::unique_ptr<Wire> inner,
                                          double rate_bytes_per_s,
                                          uint64_t latency_ns,
                                          ThrottleClock clock) {
    return std::make_unique<ThrottledWire>(std::move(inner), rate_bytes_per_s, latency_ns, clock);
}

}  // namespace slimwire::net
