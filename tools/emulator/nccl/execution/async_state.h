// What a non-blocking communicator is doing. While a step (initialisation, the launch of a group,
// finalisation) runs on a thread in the background the communicator is busy: calls on it are
// refused and ncclCommGetAsyncError says "in progress"; afterwards the outcome stays. Shared by the
// handle, the communicator and the steps in flight. Any thread.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::emu {

class AsyncState {
  public:
    void start() {
        const std::lock_guard lock(mutex_);
        ++steps_;
    }
    // The first failure stays.
    void finish(const Status& status) {
        const std::lock_guard lock(mutex_);
        --steps_;
        if (outcome_.ok()) {
            outcome_ = status;
        }
    }
    [[nodiscard]] bool busy() const {
        const std::lock_guard lock(mutex_);
        return steps_ > 0;
    }
    [[nodiscard]] Status outcome() const {
        const std::lock_guard lock(mutex_);
        return outcome_;
    }

  private:
    mutable std::mutex mutex_;
    int steps_ = 0;
    Status outcome_;
};
using AsyncRef = std::shared_ptr<AsyncState>;

// What `step` returns, or throws.
template <class Step>
Status caught(Step&& step) {
    try {
        return step();
    } catch (const std::bad_alloc&) {
        return {Code::kOutOfMemory, "out of host memory"};
    } catch (const std::exception& error) {
        return {Code::kInternalError, error.what()};
    }
}

// Runs `step` in the background and then finishes all of `started`, which the caller has started.
// The call that this happens in returns ncclInProgress.
void run_in_background(std::function<Status()> step, std::vector<AsyncRef> started);

// The calling thread's current call started something that is still in progress. take: and forgets.
void mark_in_progress() noexcept;
[[nodiscard]] bool take_in_progress() noexcept;

}  // namespace slimwire::emu
