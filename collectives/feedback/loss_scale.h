// Residuals in the units of the gradients: where the loss scale that the program tells
// (slimwire_set_loss_scale) changed, a tensor's residuals are multiplied by as much before its next
// call.
//
// Never under capture, whose replays would multiply each time.
#pragma once

#include "collectives/feedback/residual_store.h"
#include "collectives/plan/plan.h"

namespace slimwire {

// Enqueues on `stream` what a tensor needs before the call, and nothing where the scale is what it
// was at its call before, or was not known then or now. Factors of low rank have no units and stay;
// thresholds follow the data by themselves.
Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         cudaStream_t stream);

}  // namespace slimwire
