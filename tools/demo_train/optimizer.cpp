#include "tools/demo_train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace demo {

void sgd_update(const SgdSettings& settings,
                float rate,
                const float* __restrict gradient,
                float* __restrict velocity,
                float* __restrict parameter,
                size_t elems) {
    const float momentum = settings.momentum;
    const float decay = settings.weight_decay;
    for (size_t i = 0; i < elems; ++i) {
        const float v = momentum * velocity[i] + gradient[i] + decay * parameter[i];
        velocity[i] = v;
        parameter[i] -= rate * v;
    }
}

float learning_rate(float peak, int step, int warmup_steps, int total_steps) {
    if (step < warmup_steps) {
        return peak * static_cast<float>(step + 1) / static_cast<float>(warmup_steps);
    }
    const double span = std::max(1, total_steps - warmup_steps);
    const double done = std::min(1.0, (step - warmup_steps) / span);
    return static_cast<float>(peak * 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

}  // namespace demo
