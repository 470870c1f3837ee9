// The host bodies of the operations on matrices; see simd/table.h.
#pragma once

#include "codecs/simd/table.h"

namespace slimwire {

struct LearnArgs;

// One matrix and its factors, see LowRankArgs. M = factor * input (+ residual).
struct LowRankChunk {
    const uint8_t* input;
    float* residual;  // null, or rows * cols
    uint8_t* output;
    float* left;   // column after column
    float* right;  // column after column
    int64_t rows;
    int64_t cols;
    int32_t rank;
    float factor;
    float product_scale;
    float mean;
    float result;
    float sum_limit;
    DType dtype;
};
struct LowRankTable {
    void (*multiply_right)(const LowRankChunk&);
    void (*orthogonalise)(const LowRankChunk&);
    void (*multiply_left)(const LowRankChunk&);
    void (*restore)(const LowRankChunk&);
    void (*learn)(const LearnArgs&);  // its pointers resolved
};

SLIMWIRE_HOST_FAMILY(LowRankTable, host_low_rank, avx2)

}  // namespace slimwire
