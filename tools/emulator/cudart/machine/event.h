// An emulated event: the latest of its recordings. A recording is completed by the worker that
// reaches it; queries, waits and stream waits keep the recording they saw, so re-recording or
// destroying the event does not change what they wait for. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tools/emulator/cudart/machine/stream.h"

namespace slimwire::emulator {

class Capture;
struct GraphNode;

class Recording {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Recording(const Stream* stream) : stream_(stream) {}

    void complete() {
        time_ = Clock::now();
        done_.store(1, std::memory_order_release);
        done_.notify_all();
    }
    [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire) != 0; }
    void wait() const { done_.wait(0, std::memory_order_acquire); }
    // When the stream reached it; valid once done.
    [[nodiscard]] Clock::time_point time() const { return time_; }
    // Where it was recorded: compared, never dereferenced.
    [[nodiscard]] const Stream* stream() const { return stream_; }

  private:
    std::atomic<int> done_{0};
    Clock::time_point time_;
    const Stream* stream_;
};

// What the stream has reached when its present work is done.
inline std::shared_ptr<Recording> record(Stream& stream) {
    auto recording = std::make_shared<Recording>(&stream);
    stream.enqueue(make_operation(
        "cudaEventRecord", [=] { recording->complete(); }, /*survives_poison=*/true));
    return recording;
}

// Makes later work of `stream` wait. There is nothing to wait for where the recording is null,
// passed already, or earlier in the same queue.
inline void wait_for(Stream& stream, const std::shared_ptr<Recording>& recording) {
    if (recording != nullptr && !recording->done() && recording->stream() != &stream) {
        stream.enqueue(make_operation(
            "cudaStreamWaitEvent", [=] { recording->wait(); }, /*survives_poison=*/true,
            /*holds_queue=*/true));
    }
}

// Where in a capture an event was recorded: nothing that ever executes, only a set of nodes that
// whoever waits for the event will depend on.
struct CapturedRecording {
    std::weak_ptr<Capture> capture;  // expired once the capture has ended
    std::vector<std::weak_ptr<GraphNode>> nodes;
};

class Event {
  public:
    Event(int device, unsigned int flags) : device_(device), flags_(flags) {}

    void set_recording(std::shared_ptr<Recording> recording) {
        const std::lock_guard lock(mutex_);
        recording_ = std::move(recording);
        captured_ = nullptr;
    }
    void set_captured(std::shared_ptr<const CapturedRecording> captured) {
        const std::lock_guard lock(mutex_);
        recording_ = nullptr;
        captured_ = std::move(captured);
    }
    // Null before the first recording, and when the latest was captured.
    [[nodiscard]] std::shared_ptr<Recording> recording() const {
        const std::lock_guard lock(mutex_);
        return recording_;
    }
    // Null unless the latest recording was captured.
    [[nodiscard]] std::shared_ptr<const CapturedRecording> captured() const {
        const std::lock_guard lock(mutex_);
        return captured_;
    }
    [[nodiscard]] int device() const { return device_; }
    [[nodiscard]] unsigned int flags() const { return flags_; }

  private:
    const int device_;
    const unsigned int flags_;
    mutable std::mutex mutex_;
    std::shared_ptr<Recording> recording_;
    std::shared_ptr<const CapturedRecording> captured_;
};

}  // namespace slimwire::emulator
