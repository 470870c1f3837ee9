#include "collectives/feedback/loss_scale.h"

#include <cmath>
#include <utility>

#include "codecs/residual/load_store.h"
#include "collectives/call/training.h"

namespace slimwire {

Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         cudaStream_t stream) {
    if (!residual.has_other_scale()) {
        return {};
    }
    const double scale = training_state().loss_scale.load(std::memory_order_relaxed);
    const double before = std::exchange(*residual.loss_scale, scale);
    const auto factor = static_cast<float>(scale / before);
    if (!std::isfinite(factor) || factor == 0) {
        return {};
    }
    RescaleResidualArgs args{};
    args.factor = factor;
    args.stored = {static_cast<char*>(residual.buffer) + plan.residual.state_bytes,
                   static_cast<int64_t>(plan.residual.elems), 0, plan.residual.type};
    return enqueue(api, args, stream);
}

}  // namespace slimwire
