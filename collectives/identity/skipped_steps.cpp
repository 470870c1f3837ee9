#include "collectives/identity/skipped_steps.h"

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

bool SkippedSteps::may_tell(const CallSignature& signature) noexcept {
    return signature.count == 1 && signature.op == Op::kAllReduce &&
           signature.redop == RedOp::kMax && bits_of_one(signature.dtype) != 0;
}

void SkippedSteps::made(const DeviceApi& api,
                        int device,
                        const CollectiveCall& call,
                        CommStats* stats) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
        return;
    }
    const DeviceScope scope(api, device);
    for (Slot& slot : slots_) {
        read(api, &slot, stats);
    }
    stats->step_flags.fetch_add(1, std::memory_order_relaxed);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (!tolerate(api, api.stream_is_capturing(call.stream, &capture)) ||
        capture != cudaStreamCaptureStatusNone) {
        return;
    }
    pending_.push_back({call.signature.dtype, call.recv, call.stream});
}

void SkippedSteps::launched(const DeviceApi& api, int device) noexcept {
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(api, device);
    for (const Pending& flag : pending_) {
        const auto slot =
            std::find_if(slots_.begin(), slots_.end(), [](const Slot& one) { return !one.taken; });
        if (values_.memory == nullptr || slot == slots_.end() ||
            (slot->ready == nullptr &&
             !tolerate(api, api.event_create_with_flags(&slot->ready, cudaEventDisableTiming)))) {
            break;
        }
        uint64_t* const value = values_.as<uint64_t>() + (slot - slots_.begin());
        *value = 0;
        if (tolerate(api, api.memcpy_async(value, flag.source, dtype_bytes(flag.dtype),
                                           cudaMemcpyDeviceToHost, flag.stream)) &&
            tolerate(api, api.event_record(slot->ready, flag.stream))) {
            slot->taken = true;
            slot->dtype = flag.dtype;
        }
    }
    pending_.clear();
}

void SkippedSteps::dropped() noexcept {
    const std::lock_guard lock(mutex_);
    pending_.clear();
}

void SkippedSteps::read(const DeviceApi& api, Slot* slot, CommStats* stats) noexcept {
    if (!slot->taken) {
        return;
    }
    const cudaError_t ready = api.event_query(slot->ready);
    if (ready == cudaErrorNotReady) {
        (void)api.get_last_error();  // not being ready is no error of the program
        return;
    }
    slot->taken = false;
    if (!tolerate(api, ready)) {
        return;
    }
    const uint64_t value = values_.as<uint64_t>()[slot - slots_.data()];
    if (value == bits_of_one(slot->dtype)) {
        stats->skipped_steps.fetch_add(1, std::memory_order_relaxed);
    } else if (value != 0) {
        stats->other_flags.fetch_add(1, std::memory_order_relaxed);
    }
}

void SkippedSteps::end(
    const DeviceApi& api, int device, bool abort, DeviceMemory* memory, CommStats* stats) noexcept {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!abort) {
        lock.lock();
    } else if (!lock.try_lock()) {
        return;  // a thread of the program is in a call
    }
    ended_ = true;
    const DeviceScope scope(api, device);
    pending_.clear();
    Retirement left(memory, api, device);
    for (Slot& slot : slots_) {
        read(api, &slot, stats);
        left.after(slot.taken ? slot.ready : nullptr);
        slot.taken = false;
        if (slot.ready != nullptr) {
            tolerate(api, api.event_destroy(std::exchange(slot.ready, nullptr)));
        }
    }
    left.add(std::exchange(values_, {}));
}

}  // namespace slimwire
