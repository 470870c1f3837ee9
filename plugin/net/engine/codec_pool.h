// The process's codec threads: they run tasks of the connections, so that the thread in which NCCL
// calls the plugin never waits for a codec. Threads start with the first task, block all signals
// and end with the pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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

// The checksum of a message: XXH3 with 64 bits (libxxhash) over the bytes as the job sees them.
// Opt-in (SLIMWIRE_NET_CODEC=palette,checksum): networks have checksums of their own; this one also
// covers the codec and the memory in between.
[[nodiscard]] uint64_t checksum_of(const void* data, size_t bytes) noexcept;

// Computes it on a codec thread; `data` must stay until done().
class ChecksumTask final : public CodecTask {
  public:
    void submit(CodecPool& pool, const void* data, size_t bytes) {
        data_ = data;
        bytes_ = bytes;
        pool.submit(this);
    }
    [[nodiscard]] uint64_t value() const noexcept { return value_; }

  private:
    void run() noexcept override { value_ = checksum_of(data_, bytes_); }

    const void* data_ = nullptr;
    size_t bytes_ = 0;
    uint64_t value_ = 0;
};

}  // namespace slimwire::net
