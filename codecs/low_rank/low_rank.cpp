#include "codecs/low_rank/low_rank.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/launch.h"
#include "codecs/low_rank/host/table.h"
#include "codecs/low_rank/learn.h"
#include "codecs/low_rank/low_rank_draw.h"
#include "codecs/numeric.h"
#include "codecs/simd/chunks.h"

namespace slimwire {
namespace {

int64_t runs_of(int64_t extent, int64_t run) noexcept {
    return (extent + run - 1) / run;
}

// Floats that the sums of several runs take; one run needs none.
int64_t work_of(const MatrixShape& shape, int64_t rank) noexcept {
    const int64_t left = runs_of(shape.cols, kRankColumns) * rank * shape.rows;
    const int64_t right = runs_of(shape.rows, kRankRows) * rank * shape.cols;
    return std::max(shape.cols > kRankColumns ? left : 0, shape.rows > kRankRows ? right : 0);
}

// Calls run(chunk, matrix) for each matrix, with all pointers resolved.
template <class Run>
void for_each_matrix(const LowRankArgs& args, const Run& run) {
    const FloatEnvironment environment;
    const auto element_bytes = static_cast<int64_t>(dtype_bytes(args.dtype));
    const auto* input = device_view_as<const uint8_t>(args.input);
    auto* output = device_view_as<uint8_t>(args.output);
    auto* residual = device_view_as<float>(args.residual);
    auto* left = device_view_as<float>(args.left);
    auto* right = device_view_as<float>(args.right);
    const float factor =
        args.input != nullptr ? scale_factor(args.scale, args.scale_ptr, args.dtype) : 1.0f;
    for (const LowRankMatrix& matrix : std::span(args.list, static_cast<size_t>(args.matrices))) {
        run(LowRankChunk{
            .input = input != nullptr ? input + matrix.element * element_bytes : nullptr,
            .residual = residual != nullptr ? residual + matrix.element : nullptr,
            .output = output != nullptr ? output + matrix.element * element_bytes : nullptr,
            .left = left != nullptr ? left + matrix.left : nullptr,
            .right = right != nullptr ? right + matrix.right : nullptr,
            .rows = matrix.rows,
            .cols = matrix.cols,
            .rank = args.rank,
            .factor = factor,
            .product_scale = args.product_scale,
            .mean = args.mean,
            .result = args.result,
            .sum_limit = args.sum_limit,
            .dtype = args.dtype});
    }
}

// The largest magnitude of a column, as bits: those of infinity and more where it is not finite.
uint32_t largest_of(const float* column, int64_t count) noexcept {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::bit_cast<uint32_t>(column[i]) & kMagnitudeMask);
    }
    return largest;
}

// Columns of the matrix's state begin at this float.
int64_t state_begin(const LowRankArgs& args, const LowRankMatrix& matrix) noexcept {
    return int64_t{matrix.state} * args.state_rank;
}

}  // namespace

int64_t LowRankLayout::state_elems(int state_rank) const noexcept {
    int64_t elems = 0;
    for (const LowRankMatrix& matrix : matrices) {
        elems += int64_t{matrix.cols} * state_rank;
    }
    return elems;
}

LowRankLayout low_rank_layout(std::span<const MatrixShape> shapes, int rank) {
    LowRankLayout layout;
    layout.matrices.reserve(shapes.size());
    int32_t columns = 0;
    for (const MatrixShape& shape : shapes) {
        layout.matrices.push_back({.element = shape.element,
                                   .left = layout.left_elems,
                                   .right = layout.right_elems,
                                   .work = layout.work_elems,
                                   .rows = shape.rows,
                                   .cols = shape.cols,
                                   .tile = 0,
                                   .state = columns});
        columns += shape.cols;
        layout.longest = std::max({layout.longest, shape.rows, shape.cols});
        layout.left_elems += int64_t{rank} * shape.rows;
        layout.right_elems += int64_t{rank} * shape.cols;
        layout.work_elems += work_of(shape, rank);
    }
    return layout;
}

LowRankLayout transposed_layout(std::span<const MatrixShape> shapes, int rank) {
    std::vector<MatrixShape> transposed(shapes.begin(), shapes.end());
    for (MatrixShape& shape : transposed) {
        std::swap(shape.rows, shape.cols);
    }
    return low_rank_layout(transposed, rank);
}

// Factors' elements are below 2, so that sums of `longest` products with M, over all ranks, are
// below half of the largest number.
void choose_scales(const LowRankLayout& layout, int ranks, bool average, LowRankArgs* args) {
    const int bits = 2 + std::bit_width(static_cast<uint32_t>(layout.longest - 1)) +
                     std::bit_width(static_cast<uint32_t>(ranks - 1));
    const auto whole = static_cast<float>(int64_t{1} << bits);
    const auto largest = std::bit_cast<float>(args->dtype == DType::kFloat32   ? kMaxFloat32Bits
                                              : args->dtype == DType::kFloat16 ? kMaxFloat16Bits
                                                                               : kMaxBfloat16Bits);
    args->product_scale = 1.0f / whole;
    args->mean = whole / static_cast<float>(ranks);
    args->result = average ? args->mean : whole;
    args->sum_limit = largest / args->result;
    if (args->sum_limit * args->result > largest) {
        args->sum_limit = std::bit_cast<float>(std::bit_cast<uint32_t>(args->sum_limit) - 1);
    }
}

void begin_low_rank_on_host(const LowRankArgs& args) {
    auto* const state = device_view_as<const float>(args.state);
    auto* const right = device_view_as<float>(args.right);
    const FactorDraw draw =
        factor_draw(args.random, args.random.step_ptr == nullptr
                                     ? 0
                                     : *device_view_as<const uint32_t>(args.random.step_ptr));
    for (const LowRankMatrix& matrix : std::span(args.list, static_cast<size_t>(args.matrices))) {
        for (int64_t k = 0; k < args.rank; ++k) {
            const int64_t column = state_begin(args, matrix) + k * matrix.cols;
            float* const to = right + matrix.right + k * matrix.cols;
            const uint32_t largest = largest_of(state + column, matrix.cols);
            const float scale = factor_scale(largest);
            for (int64_t j = 0; j < matrix.cols; ++j) {
                to[j] = scale == 0.0f ? drawn_factor(draw, static_cast<uint64_t>(column + j))
                                      : scale * state[column + j];
            }
        }
    }
}

void multiply_right_on_host(const LowRankArgs& args) {
    for_each_matrix(args, host_table<LowRankTable>().multiply_right);
}

void orthogonalise_on_host(const LowRankArgs& args) {
    for_each_matrix(args, host_table<LowRankTable>().orthogonalise);
}

void multiply_left_on_host(const LowRankArgs& args) {
    for_each_matrix(args, host_table<LowRankTable>().multiply_left);
}

void restore_low_rank_on_host(const LowRankArgs& args) {
    for_each_matrix(args, host_table<LowRankTable>().restore);
}

void keep_low_rank_on_host(const LowRankArgs& args) {
    const FloatEnvironment environment;
    auto* const state = device_view_as<float>(args.state);
    const auto* const right = device_view_as<const float>(args.right);
    for (const LowRankMatrix& matrix : std::span(args.list, static_cast<size_t>(args.matrices))) {
        for (int64_t k = 0; k < args.rank; ++k) {
            const float* const column = right + matrix.right + k * matrix.cols;
            const uint32_t largest = largest_of(column, matrix.cols);
            const float scale = kept_scale(largest, args.product_scale);
            for (int64_t j = 0; j < matrix.cols && largest < kInfinityBits; ++j) {
                state[state_begin(args, matrix) + k * matrix.cols + j] = scale * column[j];
            }
        }
    }
}

void balance_low_rank_on_host(const LowRankArgs& args) {
    const FloatEnvironment environment;
    auto* const left = device_view_as<float>(args.left);
    auto* const right = device_view_as<float>(args.right);
    for (const LowRankMatrix& matrix : std::span(args.list, static_cast<size_t>(args.matrices))) {
        for (int64_t k = 0; k < args.rank; ++k) {
            const std::span p(left + matrix.left + k * matrix.rows,
                              static_cast<size_t>(matrix.rows));
            const std::span q(right + matrix.right + k * matrix.cols,
                              static_cast<size_t>(matrix.cols));
            const float scale = balancing_scale(largest_of(p.data(), matrix.rows));
            if (scale == 1.0f) {
                continue;  // a NaN keeps its bits
            }
            std::for_each(p.begin(), p.end(), [&](float& x) { x *= scale; });
            std::for_each(q.begin(), q.end(), [&](float& x) { x *= 1 / scale; });
        }
    }
}

void overflow_low_rank_on_host(const LowRankArgs& args) {
    const FloatEnvironment environment;
    auto* const left = device_view_as<const float>(args.left);
    auto* const right = device_view_as<float>(args.right);
    for (const LowRankMatrix& matrix : std::span(args.list, static_cast<size_t>(args.matrices))) {
        for (int64_t k = 0; k < args.rank; ++k) {
            const float* const p = left + matrix.left + k * matrix.rows;
            float lanes[kRankRows] = {};
            for (int64_t i = 0; i < matrix.rows; ++i) {
                lanes[i % kRankRows] += std::fabs(p[i]);
            }
            for (int half = kRankRows / 2; half > 0; half /= 2) {
                for (int l = 0; l < half; ++l) {
                    lanes[l] += lanes[l + half];
                }
            }
            const float limit = lanes[0] * args.sum_limit * kRankTolerance;
            float* const q = right + matrix.right + k * matrix.cols;
            for (int64_t j = 0; j < matrix.cols; ++j) {
                q[j] = std::fabs(q[j]) > limit ? q[j] * std::bit_cast<float>(kInfinityBits) : q[j];
            }
        }
    }
}

Status enqueue(const DeviceApi& api,
               LowRankStep step,
               const LowRankLayout& layout,
               const LowRankArgs& args,
               cudaStream_t stream) {
    static const Operation<LowRankArgs> kSteps[] = {
        {"begin", begin_low_rank_on_host, begin_low_rank_on_cuda, "low_rank"},
        {"multiply_right", multiply_right_on_host, multiply_right_on_cuda, "low_rank"},
        {"orthogonalise", orthogonalise_on_host, orthogonalise_on_cuda, "low_rank"},
        {"multiply_left", multiply_left_on_host, multiply_left_on_cuda, "low_rank"},
        {"restore", restore_low_rank_on_host, restore_low_rank_on_cuda, "low_rank"},
        {"keep", keep_low_rank_on_host, keep_low_rank_on_cuda, "low_rank"},
        {"balance", balance_low_rank_on_host, balance_low_rank_on_cuda, "low_rank"},
        {"overflow", overflow_low_rank_on_host, overflow_low_rank_on_cuda, "low_rank"},
    };
    const size_t all = layout.matrices.size();
    for (size_t done = 0; done < all; done += kMostMatrices) {
        LowRankArgs some = args;
        some.matrices = static_cast<int32_t>(std::min<size_t>(kMostMatrices, all - done));
        std::copy_n(layout.matrices.begin() + static_cast<std::ptrdiff_t>(done), some.matrices,
                    some.list);
        SLIMWIRE_TRY(enqueue_operation(api, kSteps[static_cast<size_t>(step)], some, stream));
    }
    return {};
}

void learn_on_host(const LearnArgs& args) {
    const FloatEnvironment environment;
    LearnArgs viewed = args;
    viewed.gradient = device_view_as<const float>(args.gradient);
    viewed.weights = device_view_as<float>(args.weights);
    host_table<LowRankTable>().learn(viewed);
}

void take_kept_on_host(const TakeKeptArgs& args) {
    const uint32_t* const end = args.numbers + args.held;
    const uint32_t* const found =
        std::find(args.numbers, end, *device_view_as<const uint32_t>(args.number));
    auto* const output = device_view_as<uint8_t>(args.output);
    if (found != end) {
        std::memmove(output, device_view_as<const uint8_t>(args.kept[found - args.numbers]),
                     static_cast<size_t>(args.bytes));
    } else {
        std::memset(output, 0, static_cast<size_t>(args.bytes));
        ++*device_view_as<uint32_t>(args.misses);
    }
}

SLIMWIRE_ENQUEUE(learn, LearnArgs)
SLIMWIRE_ENQUEUE(take_kept, TakeKeptArgs)

}  // namespace slimwire
