#include "tools/emulator/cudart/machine/stream.h"

#include <driver_types.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "codecs/base/blocked_signals.h"
#include "tools/emulator/cudart/machine/runtime.h"

namespace slimwire::emulator {
namespace {

thread_local bool t_on_worker = false;

}  // namespace

void HardwareQueue::wait(uint64_t turn) {
    std::unique_lock lock(mutex_);
    next_.wait(lock, [&] { return turn_ == turn; });
}

void HardwareQueue::pass() {
    const std::lock_guard lock(mutex_);
    ++turn_;
    next_.notify_all();
}

Stream::Stream(
    Device& device, Kind kind, int priority, uint64_t id, std::shared_ptr<HardwareQueue> queue)
    : device_(device), kind_(kind), priority_(priority), id_(id), hardware_(std::move(queue)) {}

bool Stream::on_worker() {
    return t_on_worker;
}

uint64_t Stream::enqueue(OperationRef operation, bool allocates) {
    if (!allocates) {
        only_allocates_.store(false, std::memory_order_relaxed);
    }
    // Dependencies are read before the operation is appended. Two streams that enqueue at the same
    // time can then not wait for each other: each would have to be appended before the other
    // looked.
    Entry entry{std::move(operation), device_.implicit_dependencies(*this), nullptr, 0};
    const std::lock_guard lock(mutex_);
    if (!worker_started_) {
        start_worker();
    }
    if (hardware_ != nullptr && !allocates) {  // which takes nothing of the device
        entry.queue = hardware_.get();
        entry.turn = hardware_->enqueue();
    }
    queue_.push_back(std::move(entry));
    const uint64_t ticket = enqueued_.load(std::memory_order_relaxed) + 1;
    enqueued_.store(ticket, std::memory_order_release);
    if (worker_idle_) {
        work_.notify_one();
    }
    return ticket;
}

void Stream::retire() {
    bool started = false;
    {
        const std::lock_guard lock(mutex_);
        retired_ = true;
        started = worker_started_;
        work_.notify_one();
    }
    if (!started) {
        device_.forget(*this);  // else the worker does it when it ends
    }
}

void Stream::wait(uint64_t ticket) {
    if (reached(ticket)) {
        return;
    }
    std::unique_lock lock(mutex_);
    while (!reached(ticket)) {
        wake_at_ = std::min(wake_at_, ticket);
        done_.wait(lock);
    }
}

void Stream::start_worker() {
    const BlockedSignals blocked;
    std::thread([self = shared_from_this()] { self->work(); }).detach();
    worker_started_ = true;
}

void Stream::work() {
    t_on_worker = true;
    set_current_device(device_.ordinal());
    char name[16];
    std::snprintf(name, sizeof name, "emu-stream-%u", static_cast<unsigned>(id_ % 1000));
    pthread_setname_np(pthread_self(), name);
    std::unique_lock lock(mutex_);
    for (;;) {
        while (queue_.empty()) {
            if (retired_) {
                lock.unlock();
                device_.forget(*this);
                return;
            }
            worker_idle_ = true;
            work_.wait(lock);
            worker_idle_ = false;
        }
        {
            const Entry entry = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            run(entry);
        }  // whatever the operation owned is gone before anybody sees it as completed
        lock.lock();
        const uint64_t completed = completed_.load(std::memory_order_relaxed) + 1;
        completed_.store(completed, std::memory_order_release);
        if (completed >= wake_at_) {
            wake_at_ = UINT64_MAX;  // whoever waits for more asks again
            done_.notify_all();
        }
    }
}

void Stream::run(const Entry& entry) {
    if (entry.queue != nullptr) {
        entry.queue->wait(entry.turn);
    }
    for (const Dependency& dependency : entry.dependencies) {
        dependency.stream->wait(dependency.ticket);
    }
    const bool holds = entry.operation->holds_queue;
    if (entry.queue != nullptr && !holds) {
        entry.queue->pass();
    }
    execute(*entry.operation);
    if (entry.queue != nullptr && holds) {
        entry.queue->pass();
    }
}

void Stream::execute(const Operation& operation) {
    if (device_.sticky() != cudaSuccess && !operation.survives_poison) {
        return;
    }
    try {
        operation.execute();
    } catch (cudaError_t error) {
        device_.poison(error, operation.name, "");
    } catch (const std::exception& failure) {
        device_.poison(cudaErrorLaunchFailure, operation.name, failure.what());
    } catch (...) {
        device_.poison(cudaErrorLaunchFailure, operation.name, "");
    }
}

}  // namespace slimwire::emulator
