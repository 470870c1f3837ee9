// Products with the matrices of a buffer on the device, and what is made of them. A thread that
// reads M reads neighbours of its warp's other threads.
#pragma once

#include <type_traits>

#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/low_rank/low_rank_args.h"
#include "codecs/low_rank/low_rank_draw.h"

namespace slimwire {
namespace {

constexpr int kRowsOfWarp = 4;
constexpr int kRowsOfBlock = kRowsOfWarp * kThreads / kWarpThreads;
constexpr int kRestoredTogether = 32;  // rows of a tile
static_assert(kRankLanes == kWarpThreads && kRankRows == kThreads);

__host__ __device__ __forceinline__ int64_t tiles_of(int64_t extent, int64_t of_tile) {
    return (extent + of_tile - 1) / of_tile;
}

// Runs whose sums make up P (kLeft) or Q.
__host__ __device__ __forceinline__ int64_t runs_of(const LowRankMatrix& matrix, bool left) {
    return left ? tiles_of(matrix.cols, kRankColumns) : tiles_of(matrix.rows, kRankRows);
}

// The matrix that a tile belongs to: the last that begins at or before it. Those without tiles
// begin where the next does.
__device__ __forceinline__ const LowRankMatrix& matrix_of(const LowRankArgs& args, int32_t tile) {
    int32_t low = 0;
    int32_t high = args.matrices;
    while (high - low > 1) {
        const int32_t middle = (low + high) / 2;
        if (args.list[middle].tile <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return args.list[low];
}

// Elements of M.
template <class Element>
struct DeviceMatrix {
    const uint8_t* input;
    const float* residual;
    float factor;

    __device__ DeviceMatrix(const LowRankArgs& args, const LowRankMatrix& matrix)
        : input(static_cast<const uint8_t*>(args.input) + matrix.element * Element::kBytes),
          residual(args.residual == nullptr ? nullptr : args.residual + matrix.element),
          factor(encode_factor<Element>(args)) {}

    // Zero in the place of the element where there is none.
    __device__ __forceinline__ float at(int64_t i, bool present) const {
        const float scaled =
            __fmul_rn(factor, present ? Element::get(input + i * Element::kBytes) : 0.0f);
        const float x = Element::kBytes == 2 ? overflowed(scaled, Element::kOverflowBits) : scaled;
        return residual == nullptr ? x : add_residual(x, present ? residual[i] : 0.0f);
    }
};

// P = M Q: a warp takes rows of one run of columns, a lane every kRankLanes-th of these.
template <class Element, int kFactors>
__global__ void __launch_bounds__(kThreads)
    multiply_right_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = matrix_of(args, tile);
        const DeviceMatrix<Element> elements(args, matrix);
        const int64_t runs = runs_of(matrix, true);
        const int64_t run = (tile - matrix.tile) % runs;
        const int64_t first_row =
            (tile - matrix.tile) / runs * kRowsOfBlock + threadIdx.x / kWarpThreads * kRowsOfWarp;
        const int64_t first_col = run * kRankColumns;
        const int64_t left = matrix.cols - first_col;
        const int64_t cols = left < kRankColumns ? left : kRankColumns;
        const int64_t width = tiles_of(cols, kRankLanes) * kRankLanes;
        float* const sums_of_run =
            runs == 1 ? args.left + matrix.left
                      : args.work + matrix.work + run * args.rank * int64_t{matrix.rows};
        for (int32_t first = 0; first < args.rank; first += kFactors) {
            float sums[kRowsOfWarp][kFactors] = {};
            for (int64_t j = lane; j < width; j += kRankLanes) {
                const bool present = j < cols;
                const int64_t col = first_col + j;
                float x[kRowsOfWarp];
#pragma unroll
                for (int r = 0; r < kRowsOfWarp; ++r) {
                    x[r] = elements.at((first_row + r) * matrix.cols + col,
                                       present && first_row + r < matrix.rows);
                }
#pragma unroll
                for (int k = 0; k < kFactors; ++k) {
                    const float q =
                        present && first + k < args.rank
                            ? __fmul_rn(args.product_scale,
                                        args.right[matrix.right +
                                                   (first + k) * int64_t{matrix.cols} + col])
                            : 0.0f;
#pragma unroll
                    for (int r = 0; r < kRowsOfWarp; ++r) {
                        sums[r][k] = __fmaf_rn(x[r], q, sums[r][k]);
                    }
                }
            }
#pragma unroll
            for (int k = 0; k < kFactors; ++k) {
#pragma unroll
                for (int r = 0; r < kRowsOfWarp; ++r) {
                    float sum = sums[r][k];
#pragma unroll
                    for (int half = kWarpThreads / 2; half > 0; half /= 2) {
                        sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
                    }
                    if (lane == 0 && first_row + r < matrix.rows && first + k < args.rank) {
                        sums_of_run[(first + k) * int64_t{matrix.rows} + first_row + r] =
                            canonical(sum);
                    }
                }
            }
        }
    }
}

// P (kLeft) or Q of matrices with several runs from their sums.
template <bool kLeft>
__global__ void __launch_bounds__(kThreads)
    sum_runs_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = matrix_of(args, tile);
        const int64_t elems = int64_t{args.rank} * (kLeft ? matrix.rows : matrix.cols);
        const int64_t i = int64_t{tile - matrix.tile} * kThreads + threadIdx.x;
        if (i >= elems) {
            continue;
        }
        const float* const from = args.work + matrix.work + i;
        float sum = from[0];
        for (int64_t run = 1; run < runs_of(matrix, kLeft); ++run) {
            sum = __fadd_rn(sum, from[run * elems]);
        }
        (kLeft ? args.left + matrix.left : args.right + matrix.right)[i] = canonical(sum);
    }
}

// Q = M^T P: a thread takes a column in one run of rows.
template <class Element, int kFactors>
__global__ void __launch_bounds__(kThreads)
    multiply_left_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    __shared__ float p[kRankRows][kFactors];
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = matrix_of(args, tile);
        const DeviceMatrix<Element> elements(args, matrix);
        const int64_t runs = runs_of(matrix, false);
        const int64_t run = (tile - matrix.tile) % runs;
        const int64_t col = (tile - matrix.tile) / runs * kThreads + threadIdx.x;
        const int64_t first_row = run * kRankRows;
        const int64_t left = matrix.rows - first_row;
        const int rows = static_cast<int>(left < kRankRows ? left : kRankRows);
        float* const sums_of_run =
            runs == 1 ? args.right + matrix.right
                      : args.work + matrix.work + run * args.rank * int64_t{matrix.cols};
        for (int32_t first = 0; first < args.rank; first += kFactors) {
            __syncthreads();  // the factors before are done with
            for (int k = 0; k < kFactors; ++k) {
                const int row = static_cast<int>(threadIdx.x);
                p[row][k] =
                    row < rows && first + k < args.rank
                        ? __fmul_rn(args.product_scale,
                                    args.left[matrix.left + (first + k) * int64_t{matrix.rows} +
                                              first_row + row])
                        : 0.0f;
            }
            __syncthreads();
            if (col >= matrix.cols) {
                continue;
            }
            float sums[kFactors] = {};
#pragma unroll 4
            for (int row = 0; row < rows; ++row) {
                const float x = elements.at((first_row + row) * matrix.cols + col, true);
#pragma unroll
                for (int k = 0; k < kFactors; ++k) {
                    sums[k] = __fmaf_rn(x, p[row][k], sums[k]);
                }
            }
#pragma unroll
            for (int k = 0; k < kFactors; ++k) {
                if (first + k < args.rank) {
                    sums_of_run[(first + k) * int64_t{matrix.cols} + col] = canonical(sums[k]);
                }
            }
        }
    }
}

// output = result * sum; residual = M - mean * sum, of an element of a matrix.
template <class Element>
__device__ __forceinline__ void put_restored(const LowRankArgs& args,
                                             const LowRankMatrix& matrix,
                                             const DeviceMatrix<Element>& elements,
                                             int64_t i,
                                             float sum) {
    if (args.residual != nullptr) {
        const float rest = __fsub_rn(elements.at(i, true), __fmul_rn(args.mean, sum));
        if (magnitude_of(rest) < kInfinityBits) {
            args.residual[matrix.element + i] = rest;
        }
    }
    Element::put(static_cast<uint8_t*>(args.output) + (matrix.element + i) * Element::kBytes,
                 canonical(__fmul_rn(args.result, sum)));
}

// The same of P Q^T: a thread takes a column of some rows.
template <class Element, int kRank>
__global__ void __launch_bounds__(kThreads)
    restore_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    __shared__ float p[kRestoredTogether][kRank];
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = matrix_of(args, tile);
        const DeviceMatrix<Element> elements(args, matrix);
        const int64_t row_tiles = tiles_of(matrix.rows, kRestoredTogether);
        const int64_t first_row = (tile - matrix.tile) % row_tiles * kRestoredTogether;
        const int64_t col = (tile - matrix.tile) / row_tiles * kThreads + threadIdx.x;
        const int64_t left = matrix.rows - first_row;
        const int rows = static_cast<int>(left < kRestoredTogether ? left : kRestoredTogether);
        __syncthreads();  // the tile before is done with
        for (int i = static_cast<int>(threadIdx.x); i < kRestoredTogether * kRank; i += kThreads) {
            const int row = i % kRestoredTogether;
            const int k = i / kRestoredTogether;
            p[row][k] = row < rows && k < args.rank
                            ? args.left[matrix.left + k * int64_t{matrix.rows} + first_row + row]
                            : 0.0f;
        }
        __syncthreads();
        if (col >= matrix.cols) {
            continue;
        }
        float q[kRank];
#pragma unroll
        for (int k = 0; k < kRank; ++k) {
            q[k] = k < args.rank ? args.right[matrix.right + k * int64_t{matrix.cols} + col] : 0.0f;
        }
        for (int row = 0; row < rows; ++row) {
            const int64_t i = (first_row + row) * matrix.cols + col;
            float sum = 0;
#pragma unroll
            for (int k = 0; k < kRank; ++k) {
                if (k < args.rank) {
                    sum = __fmaf_rn(p[row][k], q[k], sum);
                }
            }
            put_restored(args, matrix, elements, i,
                         saturated(sum, __float_as_uint(args.sum_limit)));
        }
    }
}

}  // namespace
}  // namespace slimwire
