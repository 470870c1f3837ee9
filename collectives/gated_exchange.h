// Calls that a gate (gate.h) times, or whose ranks tell each other times in front of them.
#pragma once

#include "collectives/exchange.h"
#include "collectives/gate.h"

namespace slimwire {

// NCCL's own call, as the program made it, on the program's communicator.
class NativeExchange final : public Exchange {
  public:
    explicit NativeExchange(const ExchangeContext& context) noexcept : context_(context) {}
    [[nodiscard]] int phases() const noexcept override { return 1; }
    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }
    Status kernels(int) override { return {}; }
    Status exchange(int phase) override;
    // Waits until a non-blocking communicator has launched the call.
    Status finish(int phase) override;

  private:
    ExchangeContext context_;
};

// One phase in front of a call's own: a maximum over the ranks, of the times that are told, or of
// nothing, so that ranks begin together. Then the call, between its events where it is timed.
class GatedExchange final : public Exchange {
  public:
    // `call`, made with `context`, is what follows.
    GatedExchange(const ExchangeContext& context, const GatedCall& gated, Exchange* call) noexcept
        : context_(context), gated_(gated), call_(call) {}

    [[nodiscard]] int phases() const noexcept override { return 1 + call_->phases(); }
    [[nodiscard]] bool exchanges(int phase) const noexcept override {
        return phase == 0 || call_->exchanges(phase - 1);
    }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] size_t words() const noexcept { return gated_.at.tells ? GatedPlan::kSlots : 1; }

    ExchangeContext context_;
    GatedCall gated_;
    Exchange* call_;
    uint64_t began_us_ = 0;
};

}  // namespace slimwire
