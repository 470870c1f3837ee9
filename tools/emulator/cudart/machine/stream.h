// An emulated stream: an in-order queue of operations, executed by a worker thread of its own that
// starts with the first operation. Used by the api_*.cpp files; enqueueing may happen on any
// thread.
//
// An operation is immutable and shared, because a captured one runs once in each replay of its
// graph; whatever changes between two executions must be drawn at execution. A ticket is the
// position of an operation in its stream: tickets count from 1, and ticket t has been reached when
// t operations have completed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace slimwire::emulator {

class Device;
class Stream;

struct Operation {
    const char* name;      // in error texts
    bool survives_poison;  // bookkeeping that must also happen on a poisoned device
    bool holds_queue;      // a hardware queue waits for its end, not its start

    Operation(const char* called, bool survives, bool holds)
        : name(called), survives_poison(survives), holds_queue(holds) {}
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    // May throw: the stream's device is then poisoned with the error (see Device::poison).
    virtual void execute() const = 0;
};
using OperationRef = std::shared_ptr<const Operation>;

// One that runs body(), in one allocation: events cost little beside what a benchmark measures.
template <class Body>
OperationRef make_operation(const char* name,
                            Body body,
                            bool survives_poison = false,
                            bool holds_queue = false) {
    struct Made final : Operation {
        Made(const char* called, Body&& run, bool survives, bool holds)
            : Operation(called, survives, holds), body(std::move(run)) {}
        void execute() const override { body(); }
        const Body body;
    };
    return std::make_shared<const Made>(name, std::move(body), survives_poison, holds_queue);
}

// "Stream `stream` has reached `ticket`."
struct Dependency {
    std::shared_ptr<Stream> stream;
    uint64_t ticket;
};

// A queue of the device that streams share (CUDA_DEVICE_MAX_CONNECTIONS): an operation starts after
// all those that were enqueued before it, whatever their streams are, and after the end of waits
// and host functions among them.
class HardwareQueue {
  public:
    // The turn of an operation that is enqueued now.
    uint64_t enqueue() { return last_.fetch_add(1, std::memory_order_relaxed); }
    void wait(uint64_t turn);
    // The next one's turn.
    void pass();

  private:
    std::atomic<uint64_t> last_{0};
    std::mutex mutex_;
    std::condition_variable next_;
    uint64_t turn_ = 0;
};

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    enum class Kind : uint8_t {
        kLegacy,       // the device's default stream: ordered with all blocking streams
        kBlocking,     // created by default flags, and each thread's own default stream
        kNonBlocking,  // not ordered with the legacy stream
    };

    // `queue` may be null: no other stream's.
    Stream(
        Device& device, Kind kind, int priority, uint64_t id, std::shared_ptr<HardwareQueue> queue);

    // Appends an operation and returns its ticket. Implicit ordering with the legacy stream is
    // added here. `allocates`: it is a part of the stream's own allocations.
    uint64_t enqueue(OperationRef operation, bool allocates = false);

    // Ends the worker once everything enqueued so far is done. No enqueue may follow.
    void retire();

    // Blocks until `ticket` is reached. Must not be called by the stream's own worker.
    void wait(uint64_t ticket);
    [[nodiscard]] bool reached(uint64_t ticket) const {
        return completed_.load(std::memory_order_acquire) >= ticket;
    }
    [[nodiscard]] uint64_t last_ticket() const { return enqueued_.load(std::memory_order_acquire); }
    [[nodiscard]] bool idle() const { return reached(last_ticket()); }
    // Whether no work of another kind was ever enqueued.
    [[nodiscard]] bool only_allocates() const {
        return only_allocates_.load(std::memory_order_relaxed);
    }

    [[nodiscard]] Device& device() const { return device_; }
    [[nodiscard]] Kind kind() const { return kind_; }
    [[nodiscard]] int priority() const { return priority_; }
    [[nodiscard]] uint64_t id() const { return id_; }

    // Operations go into a graph instead of the queue; see capture.h, which sets it.
    [[nodiscard]] bool capturing() const { return capturing_.load(std::memory_order_acquire); }
    void set_capturing(bool capturing) { capturing_.store(capturing, std::memory_order_release); }

    // True on a thread that is some stream's worker: blocking calls are refused there.
    static bool on_worker();

  private:
    struct Entry {
        OperationRef operation;
        std::vector<Dependency> dependencies;
        HardwareQueue* queue;  // null: none
        uint64_t turn;
    };

    void start_worker();
    void work();
    void run(const Entry& entry);
    void execute(const Operation& operation);

    Device& device_;
    const Kind kind_;
    const int priority_;
    const uint64_t id_;
    const std::shared_ptr<HardwareQueue> hardware_;
    std::atomic<bool> capturing_{false};
    std::atomic<bool> only_allocates_{true};

    std::mutex mutex_;
    std::condition_variable work_;  // the worker waits here
    std::condition_variable done_;  // wait() waits here
    std::deque<Entry> queue_;
    std::atomic<uint64_t> enqueued_{0};
    std::atomic<uint64_t> completed_{0};
    uint64_t wake_at_ = UINT64_MAX;  // the lowest ticket that wait() wants to hear of
    bool worker_started_ = false;
    bool worker_idle_ = false;
    bool retired_ = false;
};

}  // namespace slimwire::emulator
