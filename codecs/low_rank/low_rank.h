// The operations of PowerSGD (Vogels, Karimireddy, Jaggi 2019, algorithm 1) on the matrices of a
// buffer, all of a launch at once. Not a codec: what crosses the wire are the fp32 factors, which
// the real all-reduce sums.
//
//   begin          Q from the state, scaled; columns without content drawn    (equal on all ranks)
//   multiply_right P = M (product_scale * Q)                then: all-reduce of P
//   orthogonalise  P to orthonormal columns                                   (equal on all ranks)
//   multiply_left  Q = M^T (product_scale * P)              then: all-reduce of Q
//   overflow       of sums: what in Q no M in the type's range gives becomes infinite
//   restore        output = result * P Q^T; residual = M - mean * P Q^T
//   keep           the state becomes Q / product_scale, for the next call
//
// A linear autoencoder whose code is learnt from what it sees takes the same operations in another
// order, with Q orthonormal and equal on all ranks:
//
//   begin, orthogonalise   Q from the state         (on the layout of the transposed matrices)
//   multiply_right         Z = M (product_scale * Q)        then: all-reduce of Z
//   overflow               of sums, with Q and Z in the places of P and Q
//   balance                Z and Q so that Z Q^T stays and M^T Z is in fp32's range
//   multiply_left          S = M^T (product_scale * Z)      then: all-reduce of S
//   restore                output = result * Z Q^T; residual = M - mean * Z Q^T
//   keep                   the state becomes S / product_scale: a step of the power iteration on
//   the sum's M^T M
//
// Errors stay with the ranks: over all of them residuals sum up to what the sum of M differs from
// the sum that was delivered, where mean * product_scale * ranks = 1 and nothing was rounded.
//
// With choose_scales() a finite M has a finite output, near the type's largest number too: what the
// factors make larger ends there. The exception is a sum whose factors prove that it left the
// range: |sum over i of P_ik M_ij| is at most the largest |M_ij| of column j times the sum of
// |P_ik|.
//
// A number that is not finite makes all of its matrix NaN on all ranks; such elements keep their
// residual, and such columns their state.
//
// Host bodies on every instruction set and kernels give the same bits (FORMAT.md, "Low rank").
// Called by the algorithms in collectives/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/codec.h"
#include "codecs/low_rank/low_rank_args.h"

namespace slimwire {

// A matrix of a buffer: its first element, and its extent.
struct MatrixShape {
    int64_t element;
    int32_t rows;
    int32_t cols;
    bool operator==(const MatrixShape&) const = default;
};

// Whether factors of this rank take less than half of the matrix (the rule of PyTorch's hook).
[[nodiscard]] constexpr bool worth_low_rank(int64_t rows, int64_t cols, int64_t rank) noexcept {
    return rank < rows && rank < cols && 2 * rank * (rows + cols) < rows * cols;
}

// Whether the codec is linear_ae.
[[nodiscard]] bool autoencodes(const CodecSpec& spec) noexcept;

// Where factors and sums lie, one matrix after the other; floats. Sums of runs, which are done with
// before the next operation, share their place.
struct LowRankLayout {
    std::vector<LowRankMatrix> matrices;
    int64_t left_elems = 0;
    int64_t right_elems = 0;
    int64_t work_elems = 0;
    int32_t longest = 1;  // rows or columns of a matrix
    // Of the state for up to `rank` columns a matrix.
    [[nodiscard]] int64_t state_elems(int state_rank) const noexcept;
};
[[nodiscard]] LowRankLayout low_rank_layout(std::span<const MatrixShape> shapes, int rank);
// Of the transposed matrices, whose left factors lie as the right ones of `shapes` do.
[[nodiscard]] LowRankLayout transposed_layout(std::span<const MatrixShape> shapes, int rank);

// Of args.dtype and matrices of `layout` on so many ranks, whose sum or average is the result: sets
// product_scale (a power of two, by which no sum in fp32 overflows), mean, result and sum_limit.
void choose_scales(const LowRankLayout& layout, int ranks, bool average, LowRankArgs* args);

enum class LowRankStep : uint8_t {
    kBegin,
    kMultiplyRight,
    kOrthogonalise,
    kMultiplyLeft,
    kRestore,
    kKeep,
    kBalance,
    kOverflow
};

// Enqueues a step for all matrices of the layout on `stream`, in as many launches as their number
// takes; as enqueue() of a codec operation. `args` without its list.
Status enqueue(const DeviceApi& api,
               LowRankStep step,
               const LowRankLayout& layout,
               const LowRankArgs& args,
               cudaStream_t stream);

}  // namespace slimwire
