// What EF21 does beside a codec (Richtarik, Sokolov, Fatkhullin 2021, algorithm 2): each rank sends
// what its gradient differs by from an estimate, which follows what was sent. Not a codec: no wire
// bytes come of it.
//
// An estimate that met a number which is not finite would never be finite again. Decoded sums are
// equal on all ranks, so all see such a number in the same chunk, and begin that chunk's estimates
// anew from zero.
//
// Called by the algorithms in collectives/. Host bodies and kernels, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// output[i] = f * input[i] - estimate[i] in fp32, one rounding each, NaN canonical, of finite ones
// at most the largest fp32; f = scale * *scale_ptr. The buffers do not overlap.
struct DifferenceArgs {
    const void* input;  // `count` elements of `dtype`
    const float* estimate;
    float* output;
    const void* scale_ptr = nullptr;  // an element of `dtype`; may be null
    int64_t count;
    float scale = 1.0f;
    DType dtype;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
};

// marks[c] = 1 where chunk c of `chunk_elems` elements holds one that is not finite; others stay.
struct MarkArgs {
    const float* estimate;
    uint32_t* marks;  // a word a chunk
    int64_t count;
    int64_t chunk_elems;
    int32_t max_blocks = 0;
};

// output[i] = estimate[i], within sum_limit and rounded to `dtype`, and then in chunks that are
// marked estimate[i] = own[i] = 0.
struct SettleArgs {
    float* estimate;
    float* own = nullptr;    // may be null
    void* output = nullptr;  // `count` elements of `dtype`; may be null
    const uint32_t* marks;
    int64_t count;
    int64_t chunk_elems;
    DType dtype;
    SumLimit sum_limit = {};
    int32_t max_blocks = 0;
};

SLIMWIRE_OPERATION(difference, DifferenceArgs)
SLIMWIRE_OPERATION(mark, MarkArgs)
SLIMWIRE_OPERATION(settle, SettleArgs)

}  // namespace slimwire
