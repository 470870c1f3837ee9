// The exact sum that codecs are tried on (error_budget.h), run as a compressed call is.
#pragma once

#include "collectives/exchange.h"

namespace slimwire {

// The sum of a probe: the real operation, of the call's own elements, on the private communicator.
class ProbeExchange final : public Exchange {
  public:
    explicit ProbeExchange(const ExchangeContext& context) noexcept : context_(context) {}
    [[nodiscard]] int phases() const noexcept override { return 1; }
    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }
    Status kernels(int) override { return {}; }
    Status exchange(int phase) override;
    Status finish(int) override { return {}; }

  private:
    ExchangeContext context_;
};

}  // namespace slimwire
