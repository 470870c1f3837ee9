// Calls whose results a controller looks at (accordion.h): the call's own phases, then its result
// is added to the window's sketch on the codec stream, and at the end of a window the sums go to
// the host. Of a reduce-scatter each rank has a part of the result: one more phase adds up the
// ranks' sketches, 8 KiB, so that all decide by the norm of the whole.
//
// Made by rounds.cpp; scratch and sums are the call's own until the next call of the communicator.
#pragma once

#include "codecs/ops/sketch_args.h"
#include "collectives/adaptive/accordion.h"
#include "collectives/algorithms/exchange.h"

namespace slimwire {

class PacedExchange final : public Exchange {
  public:
    // `call`, made with `context`, is what gives the result.
    PacedExchange(const ExchangeContext& context,
                  const AccordionCall& paced,
                  Exchange* call) noexcept
        : context_(context), paced_(paced), call_(call) {}

    [[nodiscard]] int phases() const noexcept override {
        return call_->phases() + (sums_over_ranks() ? 1 : 0);
    }
    [[nodiscard]] bool exchanges(int phase) const noexcept override {
        return phase == call_->phases() || call_->exchanges(phase);
    }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;
    // That this rank gave to the transport beside the call.
    [[nodiscard]] uint64_t control_bytes() const noexcept;

  private:
    [[nodiscard]] bool sums_over_ranks() const noexcept {
        return paced_.at.last && context_.plan.signature.op == Op::kReduceScatter;
    }
    Status add_result();
    Status send_to_host();

    ExchangeContext context_;
    AccordionCall paced_;
    Exchange* call_;
};

}  // namespace slimwire
