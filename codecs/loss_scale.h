// A dynamic loss scaler, replayed from what it goes by: whether a step's reduced gradients are all
// finite. One operation looks through the result of a call, one makes the scale of the next step of
// what was found. The scale stays on the device, where rescaling reads it (RescaleResidualArgs), so
// the host does not wait for it. Not codecs: no wire bytes come of them.
//
// As PyTorch's GradScaler; with a hysteresis as Megatron's DynamicGradScaler and DeepSpeed's
// DynamicLossScaler, which count the bad steps since the scale grew. Called by collectives/. Host
// bodies and kernels, equal to the bit; operations on one state are ordered by streams.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/loss_scale_args.h"

namespace slimwire {

void look_for_nonfinite_on_host(const LookForNonfiniteArgs& args);
void advance_scale_on_host(const AdvanceScaleArgs& args);

// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const LookForNonfiniteArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const AdvanceScaleArgs& args, cudaStream_t stream);

}  // namespace slimwire
