// Kernel sources compiled by the host compiler: a small execution model of a GPU, so that the very
// kernels run where there is no GPU, also under sanitizers. A test includes this header, then the
// .cu files. The threads of a block are fibers in a random order from a printed seed; a divergent
// barrier or shuffle, a lane that is waited for and does not come and a wait without end are
// errors.
//
// Kernels, with all they call, are in anonymous namespaces. What only the hardware has needs a
// plain twin under SLIMWIRE_CUDA_ON_HOST; inline PTX does not compile here. Not modelled: weak
// ordering of memory between threads, shared memory banks, timing.
#pragma once

#define SLIMWIRE_CUDA_ON_HOST

#include "tests/support/cuda_on_host/arithmetic.h"
#include "tests/support/cuda_on_host/atomics.h"
#include "tests/support/cuda_on_host/launch.h"
#include "tests/support/cuda_on_host/machine.h"
#include "tests/support/cuda_on_host/warp.h"

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define threadIdx (::cuda_on_host::Machine::get().thread_index())
#define blockIdx (::cuda_on_host::Machine::get().block_index())
#define blockDim (::cuda_on_host::Machine::get().block_dim())
#define gridDim (::cuda_on_host::Machine::get().grid_dim())
#define warpSize 32
