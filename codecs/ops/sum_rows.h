// The sum of rows of plain elements: what is left to do where a codec does not reduce by itself,
// and how raw contributions inside a node are added. Not a codec: no wire bytes come of it.
//
// Called by the algorithms in collectives/. Host bodies per instruction set and a kernel, equal to
// the bit; rows are added in their order in fp32, so every rank that adds the same rows has the
// same sum.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// output[i] = s * (sum, within sum_limit) with s = scale * (scale_ptr ? *scale_ptr : 1), rounded to
// fp32, and sum as of DecodeReduceEncodeArgs, row r in the place of source r: one multiplication,
// rounded once to `output_dtype` (nearest even; NaN canonical). One row and scale 1 convert. Types:
// fp32, fp16, bf16 on both sides.
struct SumRowsArgs {
    const void* input;  // row r at input + r * row_bytes; aligned to the element size
    void* output;       // count elements, aligned to the element size; outside of all rows, or one
                        // of them where both types have the same size
    int64_t row_bytes;  // a multiple of the element size
    int64_t count;      // elements of a row, >= 0
    int32_t rows;       // > 0
    float scale = 1.0f;
    DType input_dtype;
    DType output_dtype;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
    float input_scale = 1.0f;
    SumLimit sum_limit = {};
    const void* scale_ptr = nullptr;  // or one element of `input_dtype`, read when it runs
};

SLIMWIRE_OPERATION(sum_rows, SumRowsArgs)

}  // namespace slimwire
