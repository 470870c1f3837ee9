// The process's codec threads: they run tasks of the connections, so that the thread in which NCCL
// calls the plugin never waits for a codec. Threads start with the first task, block all signals
// and end with the pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace slimwire::net {

// Work of a connection, embedded in what it works on; the owner keeps it until done() says so.
class CodecTask {
  public:
    CodecTask() = default;
    CodecTask(const CodecTask&) = delete;
    CodecTask& operator=(const CodecTask&) = delete;
    virtual ~CodecTask() = default;

    // Whether it ran since it was submitted; what it wrote is then visible.
    [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  protected:
    virtual void run() noexcept = 0;

  private:
    friend class CodecPool;
    CodecTask* next_ = nullptr;
    std::atomic<bool> done_{false};
};

class CodecPool {
  public:
    // With no threads submit() runs the task itself.
    explicit CodecPool(int threads) : wanted_(threads) {}
    // Runs what was submitted, then ends the threads.
    ~CodecPool();
    CodecPool(const CodecPool&) = delete;
    CodecPool& operator=(const CodecPool&) = delete;

    // First come, first run. Any thread.
    void submit(CodecTask* task);

  private:
    void work();

    const int wanted_;
    std::mutex mutex_;
    std::condition_variable wake_;
    CodecTask* first_ = nullptr;
    CodecTask* last_ = nullptr;
    int idle_ = 0;
    bool ending_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace slimwire::net
