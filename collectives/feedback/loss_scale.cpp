#include "collectives/feedback/loss_scale.h"

#include <cmath>
#include <utility>

#include "codecs/residual/load_store.h"
#include "collectives/call/training.h"
#include "collectives/feedback/call_hook.h"

namespace slimwire {

Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         cudaStream_t stream) {
    const double scale = training_state().loss_scale.load(std::memory_order_relaxed);
    if (std::isnan(scale)) {
        return {};
    }
    const double before = std::exchange(*residual.loss_scale, scale);
    const auto factor = static_cast<float>(scale / before);
    if (!std::isfinite(factor) || factor == 1 || factor == 0) {
        return {};
    }
    RescaleResidualArgs args{};
    args.factor = factor;
    args.stored = {static_cast<char*>(residual.buffer) + plan.residual.state_bytes,
                   static_cast<int64_t>(plan.residual.elems), 0, plan.residual.type};
    return enqueue(api, args, stream);
}

namespace {

class LossScaleHook final : public CallHook {
  public:
    Status before(const CallRun& run) override {
        return run.residual.buffer == nullptr
                   ? Status()
                   : follow_loss_scale(run.api, run.plan, run.residual, run.work);
    }
};

std::unique_ptr<CallHook> make_loss_scale(const Policy&) {
    return std::make_unique<LossScaleHook>();
}

}  // namespace

const HookKind kLossScaleHook{nullptr, nullptr, false, make_loss_scale};

}  // namespace slimwire
