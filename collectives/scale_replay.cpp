#include "collectives/scale_replay.h"

#include <cmath>
#include <span>
#include <utility>

#include "codecs/base/own_stream.h"
#include "codecs/loss_scale.h"
#include "collectives/capture.h"
#include "collectives/comm_state.h"
#include "collectives/step_detector.h"
#include "collectives/training.h"

namespace slimwire {

bool ReplayedSteps::next(uint64_t mark, std::optional<uint64_t> tensor) {
    bool begins = false;
    if (mark != 0) {
        begins = std::exchange(mark_, mark) != mark;
    } else if (tensor.has_value()) {
        const auto came = came_.find(*tensor);
        begins = count_ == 0 || parted_ || (came != came_.end() && came->second == count_);
        parted_ = false;
        if (came_.size() >= kMostTensors) {
            came_.clear();
        }
        came_[*tensor] = count_ + (begins ? 1 : 0);
    }
    count_ += begins ? 1 : 0;
    return begins;
}

void ReplayedSteps::add_before(uint64_t steps) noexcept {
    count_ += steps;
    for (auto& [tensor, came] : came_) {
        came += steps;
    }
}

bool ScaleReplay::told() noexcept {
    return !std::isnan(training_state().loss_scale.load(std::memory_order_relaxed));
}

namespace {

// The record of a communicator's replay is of no tensor.
LastingTensor replay_of(const CommState& state) noexcept {
    return {state.lasting_key, {}, 1, 0};
}

}  // namespace

Status ScaleReplay::make_state(const DeviceApi& api, CommState* state) {
    void* memory = nullptr;
    SLIMWIRE_TRY(cuda_status(api, api.malloc(&memory, sizeof(ReplayedScale)), "loss scale"));
    state_ = static_cast<ReplayedScale*>(memory);
    const std::vector<std::byte> loaded =
        state->progress.take(replay_of(*state), StateKind::kLossScale);
    RecordReader record(loaded);
    uint64_t steps = 0;
    ReplayedScale scale;
    if (!record.get(&steps) || !record.get(&scale)) {
        return {};
    }
    constexpr const char* kWhat = "loaded loss scale";
    SLIMWIRE_TRY(on_own_stream(api, kWhat, [&](cudaStream_t own) {
        return cuda_status(
            api, api.memcpy_async(state_, &scale, sizeof scale, cudaMemcpyHostToDevice, own),
            kWhat);
    }));
    steps_.add_before(steps);
    went_on_ = true;
    return {};
}

Status ScaleReplay::save(const CommState& state,
                         const ReadMemory& read,
                         const KeepRecord& keep) const {
    if (!alike()) {
        return {};
    }
    ReplayedScale scale;
    SLIMWIRE_TRY(read(state_, std::as_writable_bytes(std::span(&scale, 1))));
    RecordWriter record;
    record.put(steps_.count());
    record.put(scale);
    keep(replay_of(state), StateKind::kLossScale, record.take());
    return {};
}

Status ScaleReplay::begin(const DeviceApi& api, const ReplayedCall& replayed, cudaStream_t stream) {
    const uint64_t mark = training_state().marks.load(std::memory_order_acquire);
    const CollectiveCall& call = replayed.call;
    std::optional<uint64_t> tensor;
    if (replayed.tells_step) {
        // Where buffers are the tensors' own, an address is a tensor.
        tensor = call_signature(call.facts) + reinterpret_cast<uintptr_t>(call.recv);
    }
    if (!steps_.next(mark, tensor)) {
        return {};
    }
    if (state_ == nullptr) {
        SLIMWIRE_TRY(make_state(api, replayed.state));
    }
    alike_ = alike_ && mark != 0;
    replayed.state->sharing_calls += mark != 0 ? 1 : 0;
    replayed.state->stats->scale_steps.store(steps_.count(), std::memory_order_relaxed);
    return enqueue(api,
                   AdvanceScaleArgs{.state = state_,
                                    .step = steps_.count() - 1,
                                    .growth = rule_.growth,
                                    .backoff = rule_.backoff,
                                    .interval = rule_.growth_interval,
                                    .hysteresis = rule_.hysteresis},
                   stream);
}

Status ScaleReplay::end(const DeviceApi& api,
                        const CollectiveCall& call,
                        cudaStream_t stream) const {
    return state_ == nullptr
               ? Status()
               : enqueue(api,
                         LookForNonfiniteArgs{.input = call.recv,
                                              .found = &state_->bad,
                                              .count = static_cast<int64_t>(call.facts.count),
                                              .dtype = call.facts.dtype},
                         stream);
}

Status ScaleReplay::behind_native(const DeviceApi& api, const ReplayedCall& replayed) {
    CommState* const state = replayed.state;
    const CollectiveCall& call = replayed.call;
    state->users.fetch_add(1);
    const auto enqueue_all = [&]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const bool captured, capturing(api, call.stream));
        if (state->ended || told() || captured) {
            return {};
        }
        const DeviceScope device(api, state->device);
        SLIMWIRE_TRY(prepare_device_objects(api, state, 0));
        if (state->chained) {
            SLIMWIRE_TRY(cuda_status(api, api.stream_wait_event(call.stream, state->chain, 0),
                                     "wait for the call before"));
        }
        SLIMWIRE_TRY(begin(api, replayed, call.stream));
        SLIMWIRE_TRY(end(api, call, call.stream));
        SLIMWIRE_TRY(cuda_status(api, api.event_record(state->chain, call.stream), "chain event"));
        state->chained = true;
        return {};
    };
    Status status = enqueue_all();
    state->users.fetch_sub(1);
    return status;
}

const float* ScaleReplay::scale_of(uint64_t step) const noexcept {
    const uint64_t known = remembers(step) ? step : steps_.count() - kScaledSteps + 1;
    return &state_->scales[(known - 1) % kScaledSteps];
}

const uint32_t* ScaleReplay::skipped(uint64_t step) const noexcept {
    return remembers(step) ? &state_->skipped[(step - 1) % kScaledSteps] : nullptr;
}

void ScaleReplay::release(const DeviceApi& api, std::vector<void*>* left) noexcept {
    void* const memory = std::exchange(state_, nullptr);
    if (memory == nullptr) {
        return;
    }
    if (left != nullptr) {
        left->push_back(memory);
    } else {
        tolerate(api, api.free(memory));
    }
}

}  // namespace slimwire
