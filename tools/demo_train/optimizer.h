// Stochastic gradient descent with momentum and weight decay, and the learning-rate schedule.
//   v = momentum * v + g + weight_decay * p;  p = p - rate * v
// Works on any flat piece of the parameters: a bucket, or one rank's shard of it.
#pragma once

#include <cstddef>

namespace demo {

struct SgdSettings {
    float momentum = 0.9f;
    float weight_decay = 1e-4f;
};

void sgd_update(const SgdSettings& settings,
                float rate,
                const float* gradient,
                float* velocity,
                float* parameter,
                size_t elems);

// Linear warm-up over the first `warmup_steps`, then half a cosine down to zero at `total_steps`.
float learning_rate(float peak, int step, int warmup_steps, int total_steps);

}  // namespace demo
