// Arguments of the operations of PowerSGD (low_rank.h): plain data, as args.h. Pointers are
// device pointers; host bodies resolve them by device_view.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/base/dtype.h"
#include "codecs/low_rank/low_rank_shape.h"

namespace slimwire {

// A matrix inside a buffer, row after row, and its factors: P (rows x rank) and Q (cols x rank),
// both column after column.
struct LowRankMatrix {
    int64_t element;  // of the buffer, where it begins
    int64_t left;     // floats before its P
    int64_t right;    // floats before its Q
    int64_t work;     // floats before its sums of runs
    int32_t rows;
    int32_t cols;
    int32_t tile;   // for launchers
    int32_t state;  // columns before its own in the state
};
inline constexpr int kMostMatrices = 72;  // of one launch

// M = scale * (scale_ptr ? *scale_ptr : 1) * input + (residual ? residual : 0), in fp32, each
// operation rounded, for every matrix of the list. Which members an operation looks at is said in
// low_rank.h.
struct LowRankArgs {
    const void* input;      // elements of `dtype` (fp32, fp16, bf16), aligned to their size
    float* residual;        // null, or fp32, element by element as `input`
    void* output;           // may be `input`
    const void* scale_ptr;  // null, or one element of `dtype`, read when the operation runs
    float* left;            // P of all matrices
    float* right;           // Q of all matrices
    float* state;           // what the next call begins with: as `right`, `state_rank` columns each
    float* work;            // low_rank_layout().work_elems
    float scale;
    float product_scale = 1.0f;  // P = M (product_scale * Q), Q = M^T (product_scale * P)
    float mean;    // times P Q^T of the sums over ranks is what one rank sent: 1 / ranks
    float result;  // and this times it the output: 1, or 1 / ranks; both over product_scale
    float sum_limit = kNoSumLimit;  // of P Q^T, by `result` the largest number of `dtype`
    DType dtype;
    // 1 to kMostRank, at most rows and cols of each.
    int32_t rank;
    int32_t state_rank;  // >= rank
    int32_t matrices;
    int32_t max_blocks = 0;  // thread blocks that a kernel may occupy; 0: as many as run at once
    RandomKey random = {};   // equal on all ranks: `rank` is not looked at
    LowRankMatrix list[kMostMatrices];
};
static_assert(sizeof(LowRankArgs) <= 4096 - 64);

SLIMWIRE_BODIES(begin_low_rank, LowRankArgs)     // state, random -> right
SLIMWIRE_BODIES(multiply_right, LowRankArgs)     // M, right -> left
SLIMWIRE_BODIES(orthogonalise, LowRankArgs)      // left
SLIMWIRE_BODIES(multiply_left, LowRankArgs)      // M, left -> right
SLIMWIRE_BODIES(restore_low_rank, LowRankArgs)   // M, left, right -> output, residual
SLIMWIRE_BODIES(keep_low_rank, LowRankArgs)      // right -> state
SLIMWIRE_BODIES(balance_low_rank, LowRankArgs)   // left, right
SLIMWIRE_BODIES(overflow_low_rank, LowRankArgs)  // left -> right

}  // namespace slimwire
