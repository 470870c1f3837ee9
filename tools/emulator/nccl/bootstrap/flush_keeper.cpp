#include "tools/emulator/nccl/bootstrap/flush_keeper.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/emulator/nccl/bootstrap/clock.h"
#include "tools/emulator/nccl/transport/net_ucx.h"

namespace slimwire::emu {
namespace {

constexpr auto kPause = std::chrono::microseconds(500);

class FlushKeeper {
  public:
    void add(NetContext* context) {
        const std::lock_guard lock(mutex_);
        if (!running_) {
            running_ = true;
            std::thread thread([this] { run(); });
            pthread_setname_np(thread.native_handle(), "emu-nccl-flush");
            thread.detach();
        }
        if (std::find(contexts_.begin(), contexts_.end(), context) == contexts_.end()) {
            contexts_.push_back(context);
        }
        work_.notify_one();
    }
    void remove(NetContext* context) {
        const std::lock_guard lock(mutex_);
        std::erase(contexts_, context);
    }

  private:
    // A context is kept until its flush is done. One whose mutex is taken is being driven already;
    // waiting for it here could deadlock with add(), which is called under that mutex.
    void run() {
        std::unique_lock lock(mutex_);
        while (true) {
            work_.wait(lock, [this] { return !contexts_.empty(); });
            std::erase_if(contexts_, [](NetContext* context) {
                const std::unique_lock driving(context->mutex, std::try_to_lock);
                if (!driving.owns_lock()) {
                    return false;
                }
                progress(*context);
                return !context->flushing;
            });
            lock.unlock();
            std::this_thread::sleep_for(kPause);
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_;
    std::vector<NetContext*> contexts_;
    bool running_ = false;
};

FlushKeeper& keeper() {
    static FlushKeeper* const keeper = new FlushKeeper;  // its thread never ends
    return *keeper;
}

void start_flush(NetContext& context);

void on_flushed(void* operation, ucs_status_t, void* user_data) {
    auto& context = *static_cast<NetContext*>(user_data);
    context.flushing = false;
    context.ucx->api.ucp_request_free(operation);
    if (context.flush_again) {
        start_flush(context);
    }
}

void start_flush(NetContext& context) {
    context.flush_again = false;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_flushed;
    param.user_data = &context;
    context.flushing =
        UCS_PTR_IS_PTR(context.ucx->api.ucp_worker_flush_nbx(context.worker, &param));
}

}  // namespace

void flush_when_idle(NetContext& context) {
    if (context.flushing) {
        context.flush_again = true;
    } else {
        start_flush(context);
    }
    if (context.flushing) {
        keeper().add(&context);
    }
}

void finish_flush(NetContext& context, int limit_ms) {
    const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(limit_ms) * 1'000'000;
    Waiter waiter;
    while (now_ns() < deadline_ns) {
        {
            const std::lock_guard lock(context.mutex);
            progress(context);
            if (!context.flushing) {
                break;
            }
        }
        waiter.idle();
    }
    keeper().remove(&context);
}

}  // namespace slimwire::emu
