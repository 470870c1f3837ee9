#include "collectives/loss_scale.h"

#include <cmath>
#include <utility>

#include "codecs/feedback.h"
#include "collectives/training.h"

namespace slimwire {
namespace {

// The residuals and their copy for a skipped step, where there is one.
Status rescale(const DeviceApi& api,
               const Plan& plan,
               const Residual& residual,
               RescaleResidualArgs args,
               cudaStream_t stream) {
    const auto enqueue_for = [&](void* state) {
        args.stored = {static_cast<char*>(state) + plan.state_bytes,
                       static_cast<int64_t>(plan.residual_elems), 0, plan.residual_type};
        return enqueue(api, args, stream);
    };
    if (residual.kept != nullptr && residual.kept->made) {
        SLIMWIRE_TRY(enqueue_for(residual.kept->copy));
    }
    return enqueue_for(residual.buffer);
}

Status follow_replay(const DeviceApi& api,
                     const Plan& plan,
                     const Residual& residual,
                     const ScaleReplay& replay,
                     cudaStream_t stream) {
    const uint64_t now = replay.step();
    const uint64_t before = std::exchange(*residual.scale_step, now);
    // Estimates that ranks share must change on all of them in the same call.
    const bool parts = plan.error_feedback == ErrorFeedback::kEf21 && !replay.alike();
    if (before == 0 || before == now || parts) {
        return {};
    }
    RescaleResidualArgs args{};
    args.now = replay.scale_of(now);
    args.then = replay.scale_of(before);
    return rescale(api, plan, residual, args, stream);
}

}  // namespace

Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         const ScaleReplay* replay,
                         cudaStream_t stream) {
    const double scale = training_state().loss_scale.load(std::memory_order_relaxed);
    if (std::isnan(scale)) {
        return replay == nullptr ? Status() : follow_replay(api, plan, residual, *replay, stream);
    }
    const double before = std::exchange(*residual.loss_scale, scale);
    const auto factor = static_cast<float>(scale / before);
    if (!std::isfinite(factor) || factor == 1 || factor == 0) {
        return {};
    }
    RescaleResidualArgs args{};
    args.factor = factor;
    return rescale(api, plan, residual, args, stream);
}

}  // namespace slimwire
