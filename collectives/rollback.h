// Residuals as they were before a step that the program skipped (rollback = "exact"). The flag by
// which all ranks skip (step_flags.h) comes after the step's calls, so each tensor keeps a copy of
// its residuals from before its first call of a step, and its first call of the next step takes
// that back where the flag says so: on the device, without the host.
//
// Called by rounds.cpp before a call's encodings; never under capture.
#pragma once

#include "collectives/comm_state.h"
#include "collectives/residuals.h"

namespace slimwire {

// So many calls of a tensor without a flag are no step of one: its copy is given up until a flag
// comes.
inline constexpr uint32_t kMostUnflaggedCalls = 64;

// Enqueues on `stream` what a tensor needs before the call; `kept` is its own.
Status keep_or_take_back(const DeviceApi& api,
                         CommState* state,
                         const Plan& plan,
                         void* residual,
                         KeptCopy* kept,
                         cudaStream_t stream);

}  // namespace slimwire
