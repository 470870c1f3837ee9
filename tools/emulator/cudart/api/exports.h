// Include first in every file that defines exported functions: it declares the CUDA functions with
// default visibility, because everything else in the library is hidden.
#pragma once

#pragma GCC visibility push(default)
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#define SLIMWIRE_EMU_EXPORT extern "C" __attribute__((visibility("default")))
