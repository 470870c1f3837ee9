// EF21 (codecs/estimate.h) over the direct exchanges: the two ends of every block that crosses the
// wire have the same estimate of it. The sender encodes what its block differs by, both add what
// that decodes as, and where that left a value which is not finite both begin the piece of the
// block anew from zero, without a word: they add the same bytes to the same numbers. What is
// received is the estimate, rounded once; of a reduce-scatter the sum of the estimates in the order
// of the ranks, in fp32.
//
// Estimates of a tensor, fp32, in blocks of `count`: of a reduce-scatter and an all-to-all those of
// the N blocks given, then of the N blocks got; of an all-gather the N blocks of the result, which
// hold the rank's own; of gather and scatter N at the root and one elsewhere; else one. A rank
// without them would be an error.
#pragma once

#include "collectives/direct.h"

namespace slimwire {

// Completes the sizes of a direct exchange.
void direct_estimates(const CallFacts& facts, uint64_t ranks, ExchangeSizes* sizes) noexcept;

class EstimatedDirect final : public Direct {
  public:
    explicit EstimatedDirect(const ExchangeContext& context) : Direct(context) {}

  private:
    [[nodiscard]] float* given(int index) const noexcept;
    [[nodiscard]] float* received(int index) const noexcept;
    // Whether what a rank gives it also gets, decoded like the others.
    [[nodiscard]] bool gets_its_own() const noexcept;
    Status encode_blocks(int slice, int first, int last, int base) override;
    Status decode_blocks(int slice, int first, int last, int base) override;
    Status decode_sum(int slice) override;
    // Adds what slots from `block` on hold to the estimates of `blocks` blocks at `estimate`.
    Status take_up(int slice, const Piece& piece, const char* slots, float* estimate, int blocks);
    Status deliver(const Piece& piece, float* estimate, void* output, int blocks);
};

}  // namespace slimwire
