// EF21 (codecs/residual/estimate.h) over the direct reduce-scatter: the two ends of every block
// that crosses the wire have the same estimate of it. The sender encodes what its block differs by,
// both add what that decodes as, and where that left a value which is not finite both begin the
// piece of the block anew from zero, without a word: they add the same bytes to the same numbers.
// The result is the sum of the estimates in the order of the ranks, in fp32, rounded once.
//
// Estimates of a tensor, fp32, in blocks of `count`: the N blocks given, then the N blocks got. A
// rank without them would be an error.
#pragma once

#include "collectives/algorithms/direct.h"

namespace slimwire {

class EstimatedScatter final : public Direct {
  public:
    explicit EstimatedScatter(const ExchangeContext& context) : Direct(context) {}

  private:
    [[nodiscard]] float* given(int block) const noexcept;
    [[nodiscard]] float* received(int source) const noexcept;
    Status encode_blocks(int slice, int first, int last, int base) override;
    Status decode_sum(int slice) override;
    // Adds what `blocks` slots from `slots` on hold to the estimates of as many blocks.
    Status take_up(int slice, const Piece& piece, const char* slots, float* estimate, int blocks);
    // Begins chunks that hold a value which is not finite anew from zero.
    Status settle(const Piece& piece, float* estimate, int blocks);
};

}  // namespace slimwire
