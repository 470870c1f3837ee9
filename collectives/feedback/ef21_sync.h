// The first call of a tensor with EF21 on a communicator: ranks may have loaded estimates
// (slimwire_load_state) or not, and estimates that do not fit each other would part the replicas.
// So in front of the call's own exchange every rank tells by which moment its estimates were saved,
// and where these are not the same all begin at zero. All on the device, in stream order: nobody
// waits on the host. That it is a tensor's first call all ranks know alike.
//
// The moment is told bit by bit: 64 floats that are M where the bit is set, else 0, and 64 with
// both the other way around; their maximum over the ranks has M in both places where two ranks
// differ, and 2 M is infinite.
#pragma once

#include <optional>

#include "collectives/algorithms/exchange.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {

inline constexpr size_t kMomentBits = 64;
// Scratch that the first phase works with.
inline constexpr uint64_t kMomentBytes = 3 * kMomentBits * sizeof(float);

// This communicator's moment now, StateComm::moment.
[[nodiscard]] uint64_t moment_of(const Communicator& state, const Progress& progress) noexcept;

class EstimatesOfAll final : public Exchange {
  public:
    // `call`, made with `context`, is what follows. `moment`: at which this rank's estimates were
    // saved; empty where they are zero.
    EstimatesOfAll(const ExchangeContext& context,
                   std::optional<uint64_t> snapshot_id,
                   Exchange* call) noexcept
        : context_(context), snapshot_id_(snapshot_id), call_(call) {}

    [[nodiscard]] int phases() const noexcept override { return 1 + call_->phases(); }
    [[nodiscard]] bool exchanges(int phase) const noexcept override {
        return phase == 0 || call_->exchanges(phase - 1);
    }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] float* told() const noexcept {
        return reinterpret_cast<float*>(context_.scratch);
    }

    ExchangeContext context_;
    std::optional<uint64_t> snapshot_id_;
    Exchange* call_;
};

}  // namespace slimwire
