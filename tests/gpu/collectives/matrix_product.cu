// Tiles of 64 x 64 in shared memory, 4 x 4 sums a thread: bound by arithmetic, and with enough
// blocks for every multiprocessor, so that whatever else runs on the device is seen in its time.
#include "tests/gpu/collectives/matrix_product.h"

namespace slimwire::test {
namespace {

constexpr int kDepth = 16;
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) multiply(const float* __restrict__ a,
                                                     const float* __restrict__ b,
                                                     float* __restrict__ c,
                                                     int side) {
    __shared__ float rows[kDepth][kProductTile + 4];
    __shared__ float columns[kDepth][kProductTile];
    const int thread = static_cast<int>(threadIdx.x);
    const int top = static_cast<int>(blockIdx.y) * kProductTile;
    const int left = static_cast<int>(blockIdx.x) * kProductTile;
    const int own_row = thread / 16 * 4, own_column = thread % 16 * 4;
    float sums[4][4] = {};
    for (int depth = 0; depth < side; depth += kDepth) {
        for (int i = thread; i < kDepth * kProductTile; i += kThreads) {
            rows[i % kDepth][i / kDepth] =
                a[static_cast<size_t>(top + i / kDepth) * side + depth + i % kDepth];
            columns[i / kProductTile][i % kProductTile] =
                b[static_cast<size_t>(depth + i / kProductTile) * side + left + i % kProductTile];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kDepth; ++k) {
#pragma unroll
            for (int y = 0; y < 4; ++y) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    sums[y][x] = fmaf(rows[k][own_row + y], columns[k][own_column + x], sums[y][x]);
                }
            }
        }
        __syncthreads();
    }
    for (int y = 0; y < 4; ++y) {
        for (int x = 0; x < 4; ++x) {
            c[static_cast<size_t>(top + own_row + y) * side + left + own_column + x] = sums[y][x];
        }
    }
}

}  // namespace

cudaError_t launch_product(
    const float* a, const float* b, float* c, int side, cudaStream_t stream) {
    const unsigned tiles = static_cast<unsigned>(side / kProductTile);
    multiply<<<dim3(tiles, tiles), kThreads, 0, stream>>>(a, b, c, side);
    return cudaGetLastError();
}

}  // namespace slimwire::test
