// The host bodies of sums of rows; see simd/table.h.
#pragma once

#include "codecs/numeric.h"
#include "codecs/simd/table.h"

namespace slimwire {

// Rows of plain elements, see SumRowsArgs.
struct SumRowsChunk {
    const uint8_t* input;
    uint8_t* output;
    int64_t row_bytes;
    int64_t count;
    int32_t rows;
    float input_scale;
    SumLimit sum_limit = {};
    float scale;
    DType input_dtype;
    DType output_dtype;
};
struct SumRowsTable {
    void (*sum)(const SumRowsChunk&);
};

SLIMWIRE_HOST_FAMILY(SumRowsTable, host_sum_rows, avx2)

}  // namespace slimwire
