#include "collectives/communicator/pending_creations.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "collectives/communicator/communicator.h"

namespace slimwire {

bool busy(const RealNccl& nccl, ncclComm_t comm) noexcept {
    ncclResult_t state = ncclSuccess;
    return comm != nullptr && nccl.CommGetAsyncError != nullptr &&
           nccl.CommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress;
}

PendingCreationTable& PendingCreationTable::instance() {
    static PendingCreationTable* const table = new PendingCreationTable;
    return *table;
}

void PendingCreationTable::add(const PendingCreationRef& creation) {
    const std::lock_guard lock(mutex_);
    all_.push_back(creation);
    count_.store(all_.size(), std::memory_order_release);
}

void PendingCreationTable::finish(const PendingCreationRef& creation, const Status& failure) {
    const std::lock_guard lock(mutex_);
    creation->finished = true;
    creation->parent = nullptr;
    if (failure.ok() || creation->cancelled || creation->comm.load() == nullptr) {
        std::erase(all_, creation);
        count_.store(all_.size(), std::memory_order_release);
    } else {
        creation->failure = failure;
    }
    changed_.notify_all();
}

PendingCreationRef PendingCreationTable::find(ncclComm_t comm) {
    if (count_.load(std::memory_order_acquire) == 0 || comm == nullptr) {
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    for (const PendingCreationRef& creation : all_) {
        const ncclComm_t made = creation->comm.load(std::memory_order_acquire);
        // NCCL stores the handle of a split from a thread of its own, at the split's end.
        if (made == comm || creation->parent == comm ||
            (made == nullptr && !creation->finished &&
             __atomic_load_n(creation->out, __ATOMIC_ACQUIRE) == comm)) {
            return creation;
        }
    }
    return nullptr;
}

bool PendingCreationTable::wait(const PendingCreationRef& creation, uint64_t timeout_us) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                             [&] { return creation->finished; });
}

void PendingCreationTable::wait_for_all(uint64_t timeout_us) {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] {
        return std::all_of(all_.begin(), all_.end(), [](const PendingCreationRef& creation) {
            return creation->finished || !creation->native_done;
        });
    });
}

bool PendingCreationTable::finished(const PendingCreationRef& creation, Status* failure) {
    const std::lock_guard lock(mutex_);
    *failure = creation->failure;
    return creation->finished;
}

void PendingCreationTable::cancel(const PendingCreationRef& creation) {
    {
        const std::lock_guard touching(creation->touching);
        creation->cancelled = true;
    }
    // All it does is short, unless NCCL blocks it: then the real abort, which follows, gets it out.
    constexpr uint64_t kBoundUs = 2000000;
    (void)wait(creation, kBoundUs);
    const std::lock_guard lock(mutex_);
    std::erase(all_, creation);
    count_.store(all_.size(), std::memory_order_release);
}

void Backoff::pause() {
    constexpr int kYields = 20;
    if (++looks_ <= kYields) {
        std::this_thread::yield();
    } else {
        std::this_thread::sleep_for(
            std::chrono::microseconds(std::min(1000, 20 * (looks_ - kYields))));
    }
}

void AbortWatch::add(PendingCreationRef creation, const ncclComm_t* exchange) {
    watched_.push_back({std::move(creation), exchange});
}

Status AbortWatch::look(bool* busy) {
    *busy = false;
    for (const Watched& watched : watched_) {
        const std::lock_guard touching(watched.creation->touching);
        if (std::any_of(watched_.begin(), watched_.end(),
                        [](const Watched& one) { return one.creation->cancelled.load(); })) {
            return {Code::kInvalidUsage, "the communicator was aborted while it was created"};
        }
        if (nccl_.CommGetAsyncError == nullptr) {
            continue;
        }
        // The private communicator appears while its parent is busy.
        ncclResult_t state = ncclSuccess;
        SLIMWIRE_TRY(nccl_status(nccl_,
                                 nccl_.CommGetAsyncError(watched.creation->comm.load(), &state),
                                 "ncclCommGetAsyncError"));
        const ncclComm_t exchange =
            state == ncclInProgress ? nullptr : __atomic_load_n(watched.exchange, __ATOMIC_ACQUIRE);
        if (state == ncclSuccess && exchange != nullptr) {
            SLIMWIRE_TRY(nccl_status(nccl_, nccl_.CommGetAsyncError(exchange, &state),
                                     "ncclCommGetAsyncError"));
        }
        SLIMWIRE_TRY(nccl_status(nccl_, state, "the communicator while it was created"));
        *busy |= state == ncclInProgress;
    }
    return {};
}

Status AbortWatch::settle(uint64_t deadline_us) {
    bool busy = true;
    for (Backoff backoff;; backoff.pause()) {
        SLIMWIRE_TRY(look(&busy));
        if (!busy) {
            return {};
        }
        if (steady_us() >= deadline_us) {
            return {Code::kSystemError, "NCCL did not make the private communicator in time"};
        }
    }
}

bool AbortWatch::stop() {
    bool busy = false;
    if (why_.ok()) {
        why_ = look(&busy);
    }
    return !why_.ok();
}

}  // namespace slimwire
