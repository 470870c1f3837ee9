// Arguments of the operations of THC (thc.h): plain data, as plain_args.h. Pointers are device
// pointers; host bodies resolve them by device_view.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/base/dtype.h"

namespace slimwire {

inline constexpr int kMostThcRanks = 1 << 16;

// p = scale * (scale_ptr ? *scale_ptr : 1) * input + (residual ? residual : 0), in fp32, each
// operation rounded. What an operation reads and writes is said in thc.h.
struct ThcArgs {
    const void* input;      // count elements of `dtype` (fp32, fp16, bf16), aligned to their size
    void* output;           // as `input`, and may be it
    float* residual;        // null, or count fp32
    const void* scale_ptr;  // null, or one element of `dtype`, read when the operation runs
    uint32_t* scales;       // thc_groups(count)
    uint64_t* words;        // thc_words()
    float scale;
    float result;  // times the sum of all ranks is the output: 1, or 1 / ranks
    float clip;    // of the largest magnitude, what the outermost levels stand for: above 0 to 1
    int64_t count;
    int32_t block;   // elements of a rotation: a power of two from 32 to 1024
    int32_t levels;  // largest level of a rank, 1 to 255
    int32_t ranks;   // whose levels are summed, 1 to kMostThcRanks
    DType dtype;
    int32_t max_blocks = 0;  // thread blocks that a kernel may occupy; 0: as many as run at once
    RandomKey random = {};   // `rank` for rounding only; the signs are equal on all ranks
};

// Enqueue on `stream` of the current device; the launch error comes back. In builds with CUDA.
cudaError_t measure_thc_on_cuda(const ThcArgs& args, cudaStream_t stream);
cudaError_t quantise_thc_on_cuda(const ThcArgs& args, cudaStream_t stream);
cudaError_t restore_thc_on_cuda(const ThcArgs& args, cudaStream_t stream);

}  // namespace slimwire
