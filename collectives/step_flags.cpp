#include "collectives/step_flags.h"

#include <algorithm>
#include <utility>

#include "codecs/base/device_scope.h"

namespace slimwire {
namespace {

// The bits of 1, or 0 for a type that no flag has.
uint64_t bits_of_one(DType dtype) noexcept {
    switch (dtype) {
        case DType::kFloat32:
            return 0x3F800000u;
        case DType::kFloat16:
            return 0x3C00u;
        case DType::kBfloat16:
            return 0x3F80u;
        case DType::kInt8:
        case DType::kUint8:
        case DType::kInt32:
        case DType::kUint32:
            return 1;
        case DType::kInt64:  // lengths, mostly
        case DType::kUint64:
        case DType::kFloat64:
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            return 0;
    }
    return 0;
}

}  // namespace

bool StepFlags::may_be(const CallFacts& facts) noexcept {
    return facts.count == 1 && facts.op == Op::kAllReduce && facts.redop == RedOp::kMax &&
           bits_of_one(facts.dtype) != 0;
}

void StepFlags::made(const DeviceApi& api,
                     int device,
                     const CollectiveCall& call,
                     CommStats* stats) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
        return;
    }
    const DeviceScope scope(api, device);
    read_ready(api, stats);
    ++count_;
    known_[count_ % kRemembered] = StepFlag::kUnknown;
    stats->step_flags.fetch_add(1, std::memory_order_relaxed);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (!tolerate(api, api.stream_is_capturing(call.stream, &capture)) ||
        capture != cudaStreamCaptureStatusNone) {
        return;
    }
    pending_.push_back({count_, call.facts.dtype, call.recv, call.stream});
}

void StepFlags::launched(const DeviceApi& api, int device) noexcept {
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(api, device);
    for (const Pending& flag : pending_) {
        if (keeps_) {
            copy_on_device(api, flag);
        }
    }
    for (const Pending& flag : pending_) {
        void* values = values_;
        if (values_ == nullptr &&
            !tolerate(api, api.host_alloc(&values, kMostUnread * sizeof(uint64_t), 0))) {
            break;
        }
        values_ = static_cast<uint64_t*>(values);
        const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                       [](const Slot& one) { return one.number == 0; });
        if (slot == slots_.end() ||
            (slot->ready == nullptr &&
             !tolerate(api, api.event_create_with_flags(&slot->ready, cudaEventDisableTiming)))) {
            break;
        }
        uint64_t* const value = &values_[slot - slots_.begin()];
        *value = 0;
        if (tolerate(api, api.memcpy_async(value, flag.source, dtype_bytes(flag.dtype),
                                           cudaMemcpyDeviceToHost, flag.stream)) &&
            tolerate(api, api.event_record(slot->ready, flag.stream))) {
            slot->number = flag.number;
            slot->dtype = flag.dtype;
        }
    }
    pending_.clear();
}

void StepFlags::copy_on_device(const DeviceApi& api, const Pending& flag) noexcept {
    void* words = words_;
    if (words_ == nullptr && !tolerate(api, api.malloc(&words, kRemembered * sizeof(uint32_t)))) {
        return;
    }
    words_ = static_cast<uint32_t*>(words);
    const bool first = copied_ == nullptr;
    if (first && !tolerate(api, api.event_create_with_flags(&copied_, cudaEventDisableTiming))) {
        return;
    }
    const size_t place = flag.number % kRemembered;
    kept_[place] = {};
    // One event stands for all copies, so each comes after the one before, as NCCL's calls do.
    if ((first || tolerate(api, api.stream_wait_event(flag.stream, copied_, 0))) &&
        tolerate(api, api.memset_async(words_ + place, 0, sizeof(uint32_t), flag.stream)) &&
        tolerate(api, api.memcpy_async(words_ + place, flag.source, dtype_bytes(flag.dtype),
                                       cudaMemcpyDeviceToDevice, flag.stream)) &&
        tolerate(api, api.event_record(copied_, flag.stream))) {
        kept_[place] = {flag.number, static_cast<uint32_t>(bits_of_one(flag.dtype))};
    }
}

StepFlags::OnDevice StepFlags::on_device(uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    const size_t place = number % kRemembered;
    return number != 0 && kept_[place].number == number ? OnDevice{words_ + place, kept_[place].set}
                                                        : OnDevice{};
}

Status StepFlags::order_behind(const DeviceApi& api, cudaStream_t stream) noexcept {
    const std::lock_guard lock(mutex_);
    return copied_ == nullptr ? Status()
                              : cuda_status(api, api.stream_wait_event(stream, copied_, 0),
                                            "wait for the step's flag");
}

void StepFlags::dropped() noexcept {
    const std::lock_guard lock(mutex_);
    pending_.clear();
}

void StepFlags::read(const DeviceApi& api, Slot* slot, bool wait, CommStats* stats) noexcept {
    if (slot->number == 0) {
        return;
    }
    const cudaError_t ready =
        wait ? api.event_synchronize(slot->ready) : api.event_query(slot->ready);
    if (ready == cudaErrorNotReady) {
        (void)api.get_last_error();  // not being ready is no error of the program
        return;
    }
    const uint64_t number = std::exchange(slot->number, 0);
    if (!tolerate(api, ready)) {
        return;
    }
    const uint64_t value = values_[slot - slots_.data()];
    const StepFlag flag = value == 0                          ? StepFlag::kClear
                          : value == bits_of_one(slot->dtype) ? StepFlag::kSet
                                                              : StepFlag::kOther;
    if (count_ - number < kRemembered) {
        known_[number % kRemembered] = flag;
    }
    if (flag == StepFlag::kSet) {
        stats->skipped_steps.fetch_add(1, std::memory_order_relaxed);
    } else if (flag == StepFlag::kOther) {
        stats->other_flags.fetch_add(1, std::memory_order_relaxed);
    }
}

void StepFlags::read_ready(const DeviceApi& api, CommStats* stats) noexcept {
    for (Slot& slot : slots_) {
        read(api, &slot, false, stats);
    }
}

StepFlag StepFlags::of(uint64_t number) const noexcept {
    return number == 0 || number > count_ || count_ - number >= kRemembered
               ? StepFlag::kUnknown
               : known_[number % kRemembered];
}

StepFlag StepFlags::wait_for(const DeviceApi& api, uint64_t number, CommStats* stats) {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
        if (slot.number == number) {
            read(api, &slot, true, stats);
        }
    }
    return of(number);
}

void StepFlags::end(const DeviceApi& api, int device, bool wait, CommStats* stats) noexcept {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (wait) {
        lock.lock();
    } else if (!lock.try_lock()) {
        return;  // a thread of the program is in a call
    }
    ended_ = true;
    const DeviceScope scope(api, device);
    pending_.clear();
    bool idle = true;
    for (Slot& slot : slots_) {
        read(api, &slot, wait, stats);
        idle &= slot.number == 0;
        if (slot.number == 0 && slot.ready != nullptr) {
            tolerate(api, api.event_destroy(std::exchange(slot.ready, nullptr)));
        }
    }
    if (wait && copied_ != nullptr) {
        tolerate(api, api.event_synchronize(copied_));
        tolerate(api, api.event_destroy(std::exchange(copied_, nullptr)));
    }
    if (wait && words_ != nullptr) {
        tolerate(api, api.free(std::exchange(words_, nullptr)));
    }
    if (idle && values_ != nullptr) {
        tolerate(api, api.free_host(std::exchange(values_, nullptr)));
    }
}

}  // namespace slimwire
