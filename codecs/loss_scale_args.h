// Arguments of the operations of loss_scale.h: plain data, as plain_args.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire {

// *found = 1 where a value of the input is not finite; else it stays as it is.
struct LookForNonfiniteArgs {
    const void* input;  // count elements of `dtype` (fp32, fp16, bf16), aligned to their size
    uint32_t* found;
    int64_t count;  // >= 0
    DType dtype;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
};

// Steps of which the scale is remembered.
inline constexpr uint32_t kScaledSteps = 1024;

// A scaler that is replayed, on the device. Step n has the place n % kScaledSteps.
struct ReplayedScale {
    uint32_t bad;         // what looking at the results of this step found
    uint32_t good_steps;  // in a row, since the scale was changed or a step was bad
    uint32_t bad_left;    // bad steps until the scale is backed off; 0: each one does
    uint32_t reserved;
    float scales[kScaledSteps];      // over that of step 0
    uint32_t skipped[kScaledSteps];  // 1 for a step that was bad; of those that have ended
};

// The scale of step `step`, which begins, from that of the one before and what was found in it.
struct AdvanceScaleArgs {
    ReplayedScale* state;
    uint64_t step;  // 0: the state is set up
    float growth;   // above 1, once `interval` steps in a row were good
    float backoff;  // positive, below 1
    uint32_t interval;
    uint32_t hysteresis;  // bad steps since the scale grew until one backs it off; at least 1
};

// One launch on `stream` of the current device; the launch error comes back. In builds with CUDA.
cudaError_t look_for_nonfinite_on_cuda(const LookForNonfiniteArgs& args, cudaStream_t stream);
cudaError_t advance_scale_on_cuda(const AdvanceScaleArgs& args, cudaStream_t stream);

}  // namespace slimwire
