// Kernels of low_rank.h; byte for byte the host bodies: sums in the order of low_rank_shape.h. A
// thread block takes tiles, numbered over all matrices of the launch.
#include "codecs/low_rank/learn.h"
#include "codecs/low_rank/low_rank_orthogonal.cuh"
#include "codecs/low_rank/low_rank_products.cuh"

namespace slimwire {
namespace {

// --- Columns of factors and state

// The largest magnitude of a column, as bits; the same for all threads of the block.
__device__ __forceinline__ uint32_t largest_of(const float* column, int64_t count) {
    __shared__ uint32_t found[kThreads];
    uint32_t largest = 0;
    for (int64_t j = threadIdx.x; j < count; j += kThreads) {
        const uint32_t magnitude = magnitude_of(column[j]);
        largest = magnitude > largest ? magnitude : largest;
    }
    __syncthreads();  // the column before is done with
    found[threadIdx.x] = largest;
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && found[threadIdx.x + half] > found[threadIdx.x]) {
            found[threadIdx.x] = found[threadIdx.x + half];
        }
    }
    __syncthreads();
    return found[0];
}

// A tile is a column: number k of matrix t / rank.
__global__ void __launch_bounds__(kThreads)
    begin_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    const FactorDraw draw =
        factor_draw(args.random, args.random.step_ptr == nullptr ? 0 : *args.random.step_ptr);
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = args.list[tile / args.rank];
        const int64_t k = tile % args.rank;
        const int64_t column = int64_t{matrix.state} * args.state_rank + k * matrix.cols;
        float* const to = args.right + matrix.right + k * matrix.cols;
        const float scale = factor_scale(largest_of(args.state + column, matrix.cols));
        for (int64_t j = threadIdx.x; j < matrix.cols; j += kThreads) {
            to[j] = scale == 0.0f ? drawn_factor(draw, static_cast<uint64_t>(column + j))
                                  : __fmul_rn(scale, args.state[column + j]);
        }
    }
}

__global__ void __launch_bounds__(kThreads)
    keep_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = args.list[tile / args.rank];
        const int64_t k = tile % args.rank;
        const float* const column = args.right + matrix.right + k * matrix.cols;
        float* const to = args.state + int64_t{matrix.state} * args.state_rank + k * matrix.cols;
        const uint32_t largest = largest_of(column, matrix.cols);
        const float scale = kept_scale(largest, args.product_scale);
        for (int64_t j = threadIdx.x; j < matrix.cols && largest < kInfinityBits; j += kThreads) {
            to[j] = __fmul_rn(scale, column[j]);
        }
    }
}

__global__ void __launch_bounds__(kThreads)
    balance_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = args.list[tile / args.rank];
        const int64_t k = tile % args.rank;
        float* const p = args.left + matrix.left + k * matrix.rows;
        float* const q = args.right + matrix.right + k * matrix.cols;
        const float scale = balancing_scale(largest_of(p, matrix.rows));
        if (scale == 1.0f) {
            continue;  // a NaN keeps its bits
        }
        for (int64_t i = threadIdx.x; i < matrix.rows; i += kThreads) {
            p[i] = __fmul_rn(p[i], scale);
        }
        for (int64_t j = threadIdx.x; j < matrix.cols; j += kThreads) {
            q[j] = __fmul_rn(q[j], __fdiv_rn(1.0f, scale));
        }
    }
}

__global__ void __launch_bounds__(kThreads)
    overflow_kernel(const __grid_constant__ LowRankArgs args, int32_t tiles) {
    __shared__ float sums[kThreads];
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < tiles;
         tile += static_cast<int32_t>(gridDim.x)) {
        const LowRankMatrix& matrix = args.list[tile / args.rank];
        const int64_t k = tile % args.rank;
        const float* const p = args.left + matrix.left + k * matrix.rows;
        float* const q = args.right + matrix.right + k * matrix.cols;
        float sum = 0;
        for (int64_t i = threadIdx.x; i < matrix.rows; i += kThreads) {
            sum = __fadd_rn(sum, fabsf(p[i]));
        }
        __syncthreads();  // the column before is done with
        sums[threadIdx.x] = sum;
        for (unsigned half = kThreads / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) {
                sums[threadIdx.x] = __fadd_rn(sums[threadIdx.x], sums[threadIdx.x + half]);
            }
        }
        __syncthreads();
        const float limit = __fmul_rn(__fmul_rn(sums[0], args.sum_limit), kRankTolerance);
        for (int64_t j = threadIdx.x; j < matrix.cols; j += kThreads) {
            if (fabsf(q[j]) > limit) {
                q[j] = __fmul_rn(q[j], __uint_as_float(kInfinityBits));
            }
        }
    }
}

// --- Learning

__global__ void __launch_bounds__(kThreads) learn_kernel(LearnArgs args) {
    float* const first = args.weights + args.count;
    float* const second = first + args.count;
    float* const sum = second + args.count;
    for (int64_t i = thread_index(); i < args.count; i += thread_total()) {
        const LearntWeight next =
            learnt({args.weights[i], first[i], second[i], sum[i]}, args.gradient[i], args.rate,
                   args.first_scale, args.second_scale);
        args.weights[i] = next.weight;
        first[i] = next.first;
        second[i] = next.second;
        sum[i] = next.sum;
    }
}

__global__ void __launch_bounds__(kThreads)
    take_kept_kernel(const __grid_constant__ TakeKeptArgs args) {
    const uint32_t number = *args.number;
    const uint4* kept = nullptr;
    for (int32_t i = 0; i < args.held && kept == nullptr; ++i) {
        kept = args.numbers[i] == number ? static_cast<const uint4*>(args.kept[i]) : nullptr;
    }
    auto* const to = static_cast<uint4*>(args.output);
    for (int64_t i = thread_index(); i < args.bytes / 16; i += thread_total()) {
        to[i] = kept != nullptr ? kept[i] : uint4{0, 0, 0, 0};
    }
    if (kept == nullptr && thread_index() == 0) {
        ++*args.misses;
    }
}

// --- Launching

// Numbers the tiles and launches a block for each, or as many as run at once.
template <class Tiles>
cudaError_t launch_tiles(void (*kernel)(LowRankArgs, int32_t),
                         LowRankArgs args,
                         Tiles tiles_of,
                         cudaStream_t stream) {
    int32_t tiles = 0;
    for (int32_t i = 0; i < args.matrices; ++i) {
        args.list[i].tile = tiles;
        tiles += static_cast<int32_t>(tiles_of(args.list[i]));
    }
    return tiles == 0 ? cudaSuccess
                      : launch_threads(kernel, int64_t{tiles} * kThreads, args.max_blocks, stream,
                                       args, tiles);
}

// Calls run(std::integral_constant) for the ranks that kernels are made for.
template <class Run>
cudaError_t visit_rank(int32_t rank, Run run) {
    if (rank <= 4) {
        return run(std::integral_constant<int, 4>{});
    }
    if (rank <= 8) {
        return run(std::integral_constant<int, 8>{});
    }
    if (rank <= 16) {
        return run(std::integral_constant<int, 16>{});
    }
    return run(std::integral_constant<int, kMostRank>{});
}

template <bool kLeft>
cudaError_t sum_runs(const LowRankArgs& args, cudaStream_t stream) {
    return launch_tiles(
        sum_runs_kernel<kLeft>, args,
        [&](const LowRankMatrix& matrix) -> int64_t {
            const int64_t elems = int64_t{args.rank} * (kLeft ? matrix.rows : matrix.cols);
            return runs_of(matrix, kLeft) == 1 ? 0 : tiles_of(elems, kThreads);
        },
        stream);
}

bool any_runs(const LowRankArgs& args, bool left) {
    for (int32_t i = 0; i < args.matrices; ++i) {
        if (runs_of(args.list[i], left) > 1) {
            return true;
        }
    }
    return false;
}

}  // namespace

cudaError_t begin_low_rank_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    return launch_tiles(
        begin_kernel, args, [&](const LowRankMatrix&) { return args.rank; }, stream);
}

cudaError_t keep_low_rank_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    return launch_tiles(
        keep_kernel, args, [&](const LowRankMatrix&) { return args.rank; }, stream);
}

cudaError_t balance_low_rank_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    return launch_tiles(
        balance_kernel, args, [&](const LowRankMatrix&) { return args.rank; }, stream);
}

cudaError_t overflow_low_rank_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    return launch_tiles(
        overflow_kernel, args, [&](const LowRankMatrix&) { return args.rank; }, stream);
}

cudaError_t multiply_right_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    const cudaError_t error = visit(args.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto tiles = [](const LowRankMatrix& matrix) {
            return tiles_of(matrix.rows, kRowsOfBlock) * runs_of(matrix, true);
        };
        return args.rank <= 4
                   ? launch_tiles(multiply_right_kernel<Element, 4>, args, tiles, stream)
                   : launch_tiles(multiply_right_kernel<Element, 8>, args, tiles, stream);
    });
    return error != cudaSuccess || !any_runs(args, true) ? error : sum_runs<true>(args, stream);
}

cudaError_t orthogonalise_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    return visit_rank(args.rank, [&](auto rank) {
        return launch_tiles(
            orthogonalise_kernel<decltype(rank)::value>, args,
            [](const LowRankMatrix&) { return 1; }, stream);
    });
}

cudaError_t multiply_left_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    const cudaError_t error = visit(args.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto tiles = [](const LowRankMatrix& matrix) {
            return tiles_of(matrix.cols, kThreads) * runs_of(matrix, false);
        };
        return args.rank <= 4 ? launch_tiles(multiply_left_kernel<Element, 4>, args, tiles, stream)
                              : launch_tiles(multiply_left_kernel<Element, 8>, args, tiles, stream);
    });
    return error != cudaSuccess || !any_runs(args, false) ? error : sum_runs<false>(args, stream);
}

cudaError_t restore_low_rank_on_cuda(const LowRankArgs& args, cudaStream_t stream) {
    const auto tiles = [](const LowRankMatrix& matrix) {
        return tiles_of(matrix.cols, kThreads) * tiles_of(matrix.rows, kRestoredTogether);
    };
    return visit(args.dtype, [&](auto element) {
        using Element = decltype(element);
        return visit_rank(args.rank, [&](auto rank) {
            return launch_tiles(restore_kernel<Element, decltype(rank)::value>, args, tiles,
                                stream);
        });
    });
}

cudaError_t learn_on_cuda(const LearnArgs& args, cudaStream_t stream) {
    return launch_threads(learn_kernel, args.count, args.max_blocks, stream, args);
}

cudaError_t take_kept_on_cuda(const TakeKeptArgs& args, cudaStream_t stream) {
    return launch_threads(take_kept_kernel, args.bytes / 16, args.max_blocks, stream, args);
}

}  // namespace slimwire
