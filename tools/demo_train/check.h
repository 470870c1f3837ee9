// Errors of the demo trainer: every failed CUDA or NCCL call becomes one TrainError that carries
// the call and the library's own text. Called from the files of this folder that use the device.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include "tools/demo_train/error.h"

namespace demo {

// Throws TrainError "<call>: <text>" unless the result is a success. `call` is the source text of
// the call; its arguments are cut off in the message.
void check_cuda(cudaError_t error, const char* call);
void check_nccl(ncclResult_t result, const char* call);

}  // namespace demo

#define DEMO_CUDA(call) ::demo::check_cuda((call), #call)
#define DEMO_NCCL(call) ::demo::check_nccl((call), #call)
