// How the benchmark of the kernels (measure.cpp, low_rank.cpp) times one enqueue and prints its
// line.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

#include "codecs/base/dtype.h"
#include "tests/gpu/codecs/compare.h"

namespace slimwire::gpu {

using Enqueue = std::function<cudaError_t(cudaStream_t)>;

// Median seconds of one enqueue, of batches timed by events: at most ten, or about 2 ms, in each.
double seconds_of(const Enqueue& enqueue);

// What a line says beside the times.
struct Line {
    std::string codec;
    const char* op;
    DType dtype;
    int64_t bytes;    // of the user's data
    int64_t moved;    // read and written by the operation
    int64_t encoded;  // bytes of the encoding
    int32_t max_blocks;
};

// Times `enqueue` and a copy within `scratch` that moves as many bytes, and prints both.
void report(const Line& line, const DeviceBuffer& scratch, const Enqueue& enqueue);

}  // namespace slimwire::gpu
