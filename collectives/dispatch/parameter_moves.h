// A program that moves its parameters itself (slimwire_step_ahead, slimwire_step_back): the
// communicator whose call knows the gradient is looked up. Outside groups.
#pragma once

#include "collectives/communicator/process.h"
#include "collectives/feedback/step_ahead.h"

namespace slimwire {

// StepAhead::ahead() and StepAhead::back() of the first communicator that can. False: none can.
Result<bool> move_ahead(Runtime& runtime, const StepAhead::Moved& what, cudaStream_t stream);
Result<bool> move_back(Runtime& runtime, void* parameter, cudaStream_t stream);

}  // namespace slimwire
