// Step-ahead error feedback (SAEF: Xu, Huo, Huang, AAAI 2021, algorithm 2; with a gain as SA-PEF
// has it): parameters that a rank computes with are moved by what it still owes, and how far a step
// moves them, from what it sees of the optimizer. Not a codec: no wire bytes come of it.
//
// Called by collectives/step_ahead. Host bodies and kernels, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/residual/step_ahead_args.h"

namespace slimwire {

void find_step_size_on_host(const StepSizeArgs& args);
void shift_on_host(const ShiftArgs& args);

// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const StepSizeArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const ShiftArgs& args, cudaStream_t stream);

}  // namespace slimwire
