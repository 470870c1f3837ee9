// Sums over a buffer in the order of kMeasureLanes (numeric.h), two at a time.
#pragma once

namespace slimwire {
namespace {

// Of `count` threads' terms, in shared memory.
__device__ __forceinline__ void sum_in_pairs(double* a, double* b, int count) {
    for (int half = count / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) {
            a[threadIdx.x] = __dadd_rn(a[threadIdx.x], a[threadIdx.x + half]);
            b[threadIdx.x] = __dadd_rn(b[threadIdx.x], b[threadIdx.x + half]);
        }
    }
    __syncthreads();
}

}  // namespace
}  // namespace slimwire
