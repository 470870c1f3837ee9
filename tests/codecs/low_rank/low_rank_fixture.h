// What tests of PowerSGD's operations share: the buffers of a rank, a job of matrices, and the
// operations by FORMAT.md, slow and word by word.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "codecs/low_rank/low_rank.h"
#include "tests/codecs/fixture.h"

namespace slimwire::testing {

// All buffers of one rank.
struct Buffers {
    Guarded input;
    Guarded output;
    std::vector<float> residual, left, right, state, work;

    Buffers(const LowRankLayout& layout, DType dtype, int64_t count, int state_rank, int64_t shift)
        : input(count * static_cast<int64_t>(dtype_bytes(dtype)), shift),
          output(count * static_cast<int64_t>(dtype_bytes(dtype)), shift),
          residual(guarded(std::vector<float>(static_cast<size_t>(count)))),
          left(guarded(std::vector<float>(static_cast<size_t>(layout.left_elems)))),
          right(guarded(std::vector<float>(static_cast<size_t>(layout.right_elems)))),
          state(guarded(std::vector<float>(static_cast<size_t>(layout.state_elems(state_rank))))),
          work(guarded(std::vector<float>(static_cast<size_t>(layout.work_elems)))) {}

    [[nodiscard]] bool margins_intact() const {
        return output.margins_intact() && input.margins_intact() && margin_intact(residual) &&
               margin_intact(left) && margin_intact(right) && margin_intact(state) &&
               margin_intact(work);
    }
    bool operator==(const Buffers& other) const {
        return output.copy(output.size()) == other.output.copy(other.output.size()) &&
               same_bits(residual, other.residual) && same_bits(left, other.left) &&
               same_bits(right, other.right) && same_bits(state, other.state);
    }
};

struct Job {
    LowRankLayout layout;
    DType dtype = DType::kFloat32;
    int rank = 4;
    int state_rank = 4;
    bool fed = true;
    float scale = 1.0f;
    const void* scale_ptr = nullptr;
    float product_scale = 1.0f;
    float mean = 1.0f;
    float result = 1.0f;
    float sum_limit = kNoSumLimit;
    RandomKey random = {.seed = 5, .tensor = 3, .rank = 1, .step = 9};

    LowRankArgs args(Buffers& buffers) const {
        LowRankArgs args{};
        args.input = buffers.input.data();
        args.residual = fed ? buffers.residual.data() : nullptr;
        args.output = buffers.output.data();
        args.scale_ptr = scale_ptr;
        args.left = buffers.left.data();
        args.right = buffers.right.data();
        args.state = buffers.state.data();
        args.work = buffers.work.data();
        args.scale = scale;
        args.product_scale = product_scale;
        args.mean = mean;
        args.result = result;
        args.sum_limit = sum_limit;
        args.dtype = dtype;
        args.rank = rank;
        args.state_rank = state_rank;
        args.matrices = static_cast<int32_t>(layout.matrices.size());
        args.random = random;
        std::copy(layout.matrices.begin(), layout.matrices.end(), args.list);
        return args;
    }
};

inline constexpr LowRankStep kAllSteps[] = {
    LowRankStep::kBegin,        LowRankStep::kMultiplyRight, LowRankStep::kOrthogonalise,
    LowRankStep::kMultiplyLeft, LowRankStep::kRestore,       LowRankStep::kKeep};

inline void on_host(LowRankStep step, const LowRankArgs& args) {
    constexpr void (*kBodies[])(const LowRankArgs&) = {
        begin_low_rank_on_host,   multiply_right_on_host,   orthogonalise_on_host,
        multiply_left_on_host,    restore_low_rank_on_host, keep_low_rank_on_host,
        balance_low_rank_on_host, overflow_low_rank_on_host};
    kBodies[static_cast<size_t>(step)](args);
}

// Matrices one after the other with gaps between, in a buffer of so many elements.
inline std::vector<MatrixShape> place(const std::vector<std::pair<int32_t, int32_t>>& extents,
                                      int64_t gap,
                                      int64_t* count) {
    std::vector<MatrixShape> shapes;
    *count = gap;
    for (const auto& [rows, cols] : extents) {
        shapes.push_back({*count, rows, cols});
        *count += int64_t{rows} * cols + gap;
    }
    return shapes;
}

// One operation by FORMAT.md, "Low rank".
void reference_low_rank(LowRankStep step, const Job& job, Buffers& buffers);

}  // namespace slimwire::testing
