// P to orthonormal columns on the device, a thread block for a matrix: the Cholesky factor of P^T P
// in fp64, as codecs/low_rank/host/low_rank_orthogonal.h.
#pragma once

#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/low_rank/low_rank_args.h"

namespace slimwire {
namespace {

constexpr int kGramBlock = 4;  // columns of P whose inner products a warp takes together

struct DeviceCholesky {
    double lower[kMostRank][kMostRank + 1];
    double inverse[kMostRank];
    bool finite;
};

// lower[a][b] = inner product of columns a and b of P, b <= a.
__device__ __forceinline__ void gram(const float* p,
                                     int64_t rows,
                                     int32_t rank,
                                     DeviceCholesky& factor) {
    const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
    const int blocks = (rank + kGramBlock - 1) / kGramBlock;
    int number = 0;
    for (int block_a = 0; block_a < blocks; ++block_a) {
        for (int block_b = 0; block_b <= block_a; ++block_b, ++number) {
            if (number % (kThreads / kWarpThreads) !=
                static_cast<int>(threadIdx.x / kWarpThreads)) {
                continue;
            }
            double sums[kGramBlock][kGramBlock] = {};
            for (int64_t i = lane; i < rows; i += kRankLanes) {
                double a[kGramBlock];
                double b[kGramBlock];
#pragma unroll
                for (int x = 0; x < kGramBlock; ++x) {
                    const int column_a = block_a * kGramBlock + x;
                    const int column_b = block_b * kGramBlock + x;
                    a[x] = column_a < rank ? p[column_a * rows + i] : 0.0f;
                    b[x] = column_b < rank ? p[column_b * rows + i] : 0.0f;
                }
#pragma unroll
                for (int x = 0; x < kGramBlock; ++x) {
#pragma unroll
                    for (int y = 0; y < kGramBlock; ++y) {
                        sums[x][y] = __dadd_rn(sums[x][y], __dmul_rn(a[x], b[y]));
                    }
                }
            }
#pragma unroll
            for (int x = 0; x < kGramBlock; ++x) {
#pragma unroll
                for (int y = 0; y < kGramBlock; ++y) {
                    double sum = sums[x][y];
#pragma unroll
                    for (int half = kWarpThreads / 2; half > 0; half /= 2) {
                        sum = __dadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, half));
                    }
                    if (lane == 0) {
                        factor.lower[block_a * kGramBlock + x][block_b * kGramBlock + y] = sum;
                    }
                }
            }
        }
    }
}

// The Cholesky factor in the place of the inner products; by one warp, a lane for a row.
__device__ __forceinline__ void factorise(int32_t rank, DeviceCholesky& factor) {
    const int row = static_cast<int>(threadIdx.x);
    bool finite = true;
    for (int k = 0; k < rank; ++k) {
        double rest = factor.lower[row][k];
        const double whole = factor.lower[k][k];
        __syncwarp();
        for (int t = 0; t < k; ++t) {
            rest = __dsub_rn(rest, __dmul_rn(factor.lower[row][t], factor.lower[k][t]));
        }
        const double pivot = __shfl_sync(0xFFFFFFFFu, rest, k);
        finite = finite && __dsub_rn(whole, whole) == 0;
        const bool depends = !(pivot > __dmul_rn(whole, kRankDependent));
        const double inverse = depends ? 0.0 : __ddiv_rn(1.0, __dsqrt_rn(pivot));
        if (row >= k && row < rank) {
            factor.lower[row][k] = __dmul_rn(rest, inverse);
        }
        if (row == k) {
            factor.inverse[k] = inverse;
        }
        __syncwarp();
    }
    if (row == 0) {
        factor.finite = finite;
    }
}

template <int kRank>
__global__ void __launch_bounds__(kThreads, 1)
    orthogonalise_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    __shared__ DeviceCholesky factor;
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = args.list[tile];
        float* const p = args.left + matrix.left;
        __syncthreads();  // the matrix before is done with
        gram(p, matrix.rows, args.rank, factor);
        __syncthreads();
        if (threadIdx.x < kWarpThreads) {
            factorise(args.rank, factor);
        }
        __syncthreads();
        for (int64_t row = threadIdx.x; row < matrix.rows; row += kThreads) {
            double solved[kRank];
#pragma unroll
            for (int k = 0; k < kRank; ++k) {
                if (k < args.rank) {
                    float* const place = p + k * int64_t{matrix.rows} + row;
                    double value = *place;
#pragma unroll
                    for (int t = 0; t < k; ++t) {
                        value = __dsub_rn(value, __dmul_rn(factor.lower[k][t], solved[t]));
                    }
                    solved[k] = __dmul_rn(value, factor.inverse[k]);
                    *place = factor.finite ? static_cast<float>(solved[k])
                                           : __uint_as_float(kNanFloat32);
                }
            }
        }
    }
}

}  // namespace
}  // namespace slimwire
