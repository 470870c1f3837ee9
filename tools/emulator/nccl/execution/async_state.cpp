#include "tools/emulator/nccl/execution/async_state.h"

#include <cuda_runtime_api.h>

#include <thread>
#include <utility>

#include "codecs/base/blocked_signals.h"
#include "tools/emulator/nccl/bootstrap/log.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

thread_local bool t_in_progress = false;

}  // namespace

void run_in_background(std::function<Status()> step, std::vector<AsyncRef> started) {
    const BlockedSignals blocked;
    std::thread([step = std::move(step), started = std::move(started)]() mutable {
        begin_own_thread();
        // A capture of another thread is not this thread's concern.
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
        const Status status = caught(step);
        (void)to_nccl(status);  // logged once, here
        step = nullptr;         // what it holds is gone before anybody sees the end
        for (const AsyncRef& state : started) {
            state->finish(status);
        }
    }).detach();
    mark_in_progress();
}

void mark_in_progress() noexcept {
    t_in_progress = true;
}

bool take_in_progress() noexcept {
    return std::exchange(t_in_progress, false);
}

}  // namespace slimwire::emu
