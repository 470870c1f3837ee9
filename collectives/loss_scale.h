// Residuals in the units of the gradients: where the program's loss scale changed, as it tells
// (slimwire_set_loss_scale) or as a replay of its scaler finds (scale_replay.h), what a tensor is
// owed is multiplied by as much before its next call.
//
// Called by rounds.cpp and rehearsal.cpp, before a copy of the residuals is kept or taken back;
// never under capture, whose replays would multiply each time.
#pragma once

#include "collectives/plan.h"
#include "collectives/residuals.h"
#include "collectives/scale_replay.h"

namespace slimwire {

// Enqueues on `stream` what a tensor needs before the call, and nothing where the scale is what it
// was at its call before, or was not known then or now. Factors of low rank have no units and stay;
// aims follow the data by themselves. `replay`: null where there is none of this call.
Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         const ScaleReplay* replay,
                         cudaStream_t stream);

}  // namespace slimwire
