// The program's dynamic loss scaler, replayed (key loss_scale of a rule): which scale a step has
// follows from which steps before had gradients that were not finite, and reduced gradients are
// equal on all ranks. So each rank looks through the results of the calls whose rule says so and
// does with a scale of its own, which begins at 1, what the program does with its. Scale and flags
// stay on the device (codecs/loss_scale.h); the host knows steps only, and waits for nothing.
//
// Part of a CommState, and like it used by one thread at a time. What it enqueues for calls of one
// communicator comes one after the other, by the event that chains them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/loss_scale_args.h"
#include "collectives/call.h"
#include "collectives/policy.h"
#include "collectives/progress.h"

namespace slimwire {

struct CommState;

// Where a step begins among the calls that are replayed: where the program marks one, or, in a
// program that does not, where a tensor comes again, or comes behind something that only happens
// between steps. Pure.
class ReplayedSteps {
  public:
    // Tensors that are remembered: of programs that move them, not all.
    static constexpr size_t kMostTensors = 65536;

    // The next call: whether it begins a step. `mark`: number of the last mark, 0 for none.
    // `tensor` differs for tensors of one step; none for calls that may come anywhere, which begin
    // a step only where that is marked.
    bool next(uint64_t mark, std::optional<uint64_t> tensor);
    // Something that only comes between steps.
    void part() noexcept { parted_ = true; }
    // So many steps had begun before, and the last of them has ended.
    void add_before(uint64_t steps) noexcept;
    // Steps that have begun.
    [[nodiscard]] uint64_t count() const noexcept { return count_; }

  private:
    std::unordered_map<uint64_t, uint64_t> came_;  // tensor -> count_ when it came last
    uint64_t count_ = 0;
    uint64_t mark_ = 0;
    bool parted_ = false;
};

// A call whose result counts.
struct ReplayedCall {
    CommState* state = nullptr;
    CollectiveCall call;
    // Whether it may begin a step: where its plan is compressed, whatever becomes of this call.
    // Else it is small, and may be of something else than a gradient.
    bool tells_step = true;
};

class ScaleReplay {
  public:
    explicit ScaleReplay(const LossScaleRule& rule) noexcept : rule_(rule) {}
    // Whether the program tells its scale (slimwire_set_loss_scale), which counts from then on.
    [[nodiscard]] static bool told() noexcept;

    // Any call of the communicator is made. DDP broadcasts between the steps alone: its buffers,
    // and what its buckets become behind the first.
    void hear(const CallFacts& facts) noexcept {
        if (facts.op == Op::kBroadcast) {
            steps_.part();
        }
    }
    // Enqueues on `stream` what comes before a call, and behind it. Not under capture, nor once the
    // scale is told.
    Status begin(const DeviceApi& api, const ReplayedCall& replayed, cudaStream_t stream);
    Status end(const DeviceApi& api, const CollectiveCall& call, cudaStream_t stream) const;
    // Both, behind a call that NCCL has launched.
    Status behind_native(const DeviceApi& api, const ReplayedCall& replayed);
    std::optional<ReplayedCall> waits;  // that is being forwarded

    // Steps so far, the one at hand included; a step is named by this number, from 1.
    [[nodiscard]] uint64_t step() const noexcept { return steps_.count(); }
    // Where the scale of a step is on the device; of one too long ago that of the first known.
    [[nodiscard]] const float* scale_of(uint64_t step) const noexcept;
    // The word that is 1 where the program skipped a step that has ended; null for one too long
    // ago.
    [[nodiscard]] const uint32_t* skipped(uint64_t step) const noexcept;
    // The communicator's record, where ranks know the same steps.
    Status save(const CommState& state, const ReadMemory& read, const KeepRecord& keep) const;
    // Whether it goes on where a replay before was, whose steps' numbers count.
    [[nodiscard]] bool went_on() const noexcept { return went_on_; }
    // Whether all ranks know the same steps: the program has marked them from the first call on.
    // Else they follow from addresses, which is a rank's own knowledge.
    [[nodiscard]] bool alike() const noexcept { return alike_ && state_ != nullptr; }

    // Frees what it has; with `left` that goes there instead, because it may be in use.
    void release(const DeviceApi& api, std::vector<void*>* left) noexcept;

  private:
    // Makes the state for the first call, from what was loaded for the communicator.
    Status make_state(const DeviceApi& api, CommState* state);
    [[nodiscard]] bool remembers(uint64_t step) const noexcept {
        return step + kScaledSteps > steps_.count();
    }

    LossScaleRule rule_;
    ReplayedSteps steps_;
    ReplayedScale* state_ = nullptr;  // on the device, made for the first call
    bool alike_ = true;
    bool went_on_ = false;
};

}  // namespace slimwire
