// Kernel of transpose.h. A thread block takes a tile through shared memory, so that reads and
// writes are of neighbours.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/ops/transpose.h"

namespace slimwire {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = kThreads / kTile;

template <class Word>
__global__ void __launch_bounds__(kThreads) transpose_kernel(TransposeArgs args, int64_t tiles) {
    __shared__ Word tile[kTile][kTile + 1];
    const auto* const input = static_cast<const Word*>(args.input);
    auto* const output = static_cast<Word*>(args.output);
    const int x = static_cast<int>(threadIdx.x % kTile),
              first = static_cast<int>(threadIdx.x / kTile);
    const int64_t across = (args.row + kTile - 1) / kTile;
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const int64_t row = number / across * kTile, col = number % across * kTile;
        __syncthreads();  // the tile before is done with
        for (int y = first; y < kTile; y += kTileRows) {
            const int64_t i = args.to_columns ? row + y : row + x;
            const int64_t j = args.to_columns ? col + x : col + y;
            const int64_t of_rows = i * args.row + j;
            if (i < args.column && j < args.row) {
                tile[y][x] = !args.to_columns       ? input[j * args.column + i]
                             : of_rows < args.count ? input[of_rows]
                                                    : Word{0};
            }
        }
        __syncthreads();
        for (int y = first; y < kTile; y += kTileRows) {
            const int64_t i = args.to_columns ? row + x : row + y;
            const int64_t j = args.to_columns ? col + y : col + x;
            const int64_t of_rows = i * args.row + j;
            if (i < args.column && j < args.row && (args.to_columns || of_rows < args.count)) {
                output[args.to_columns ? j * args.column + i : of_rows] = tile[x][y];
            }
        }
    }
}

}  // namespace

cudaError_t transpose_on_cuda(const TransposeArgs& args, cudaStream_t stream) {
    const int64_t tiles = (args.row + kTile - 1) / kTile * ((args.column + kTile - 1) / kTile);
    const auto kernel = dtype_bytes(args.dtype) == 2   ? transpose_kernel<uint16_t>
                        : dtype_bytes(args.dtype) == 4 ? transpose_kernel<uint32_t>
                                                       : transpose_kernel<uint64_t>;
    return tiles == 0
               ? cudaSuccess
               : launch_threads(kernel, tiles * kThreads, args.max_blocks, stream, args, tiles);
}

}  // namespace slimwire
