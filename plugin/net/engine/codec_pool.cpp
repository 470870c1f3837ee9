#include "plugin/net/engine/codec_pool.h"

#include <pthread.h>

#include <system_error>

#include "codecs/base/blocked_signals.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace slimwire::net {

CodecPool::~CodecPool() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void CodecPool::submit(CodecTask* task) {
    task->done_.store(false, std::memory_order_relaxed);
    bool run_here = wanted_ == 0;
    bool wake = false;
    if (!run_here) {
        const std::lock_guard lock(mutex_);
        if (idle_ == 0 && static_cast<int>(threads_.size()) < wanted_) {
            const BlockedSignals blocked;
            try {
                threads_.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                run_here = threads_.empty();  // the others, or the caller, do it
            }
        }
        if (!run_here) {
            task->next_ = nullptr;
            (last_ != nullptr ? last_->next_ : first_) = task;
            last_ = task;
            wake = idle_ > 0;
        }
    }
    if (run_here) {
        task->run();
        task->done_.store(true, std::memory_order_release);
    } else if (wake) {
        wake_.notify_one();
    }
}

void CodecPool::work() {
    pthread_setname_np(pthread_self(), "slimwire-codec");
    std::unique_lock lock(mutex_);
    while (true) {
        while (first_ == nullptr) {
            if (ending_) {
                return;
            }
            ++idle_;
            wake_.wait(lock);
            --idle_;
        }
        CodecTask* const task = first_;
        first_ = task->next_;
        last_ = first_ != nullptr ? last_ : nullptr;
        lock.unlock();
        task->run();
        task->done_.store(true, std::memory_order_release);
        lock.lock();
    }
}

uint64_t checksum_of(const void* data, size_t bytes) noexcept {
    return XXH3_64bits(data, bytes);
}

}  // namespace slimwire::net
