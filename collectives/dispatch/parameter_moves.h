// A program that moves its parameters itself: the communicator whose call knows the gradient is
// looked up. Outside groups.
#pragma once

#include "collectives/communicator/process.h"
#include "collectives/feedback/call_hook.h"

namespace slimwire {

// By the first hook of a communicator that can (CallHook::move_parameter, return_parameter). False:
// none can.
Result<bool> move_ahead(Runtime& runtime, const ParameterMove& what, cudaStream_t stream);
Result<bool> move_back(Runtime& runtime, void* parameter, cudaStream_t stream);

}  // namespace slimwire
