// The compute of a backward pass, for overlap.cpp: a product of square fp32 matrices on a stream.
// The device's is in matrix_product.cu; matrix_product_host.cpp stands in for it on the emulator.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace slimwire::test {

// The side is a multiple of this.
constexpr int kProductTile = 64;

// c = a * b, row-major, `side` x `side` floats on the current device; asynchronous on `stream`.
cudaError_t launch_product(const float* a, const float* b, float* c, int side, cudaStream_t stream);

}  // namespace slimwire::test
