// A linear autoencoder between two ranks, whose messages answer each other, learns both of its
// matrices as part of the network around it (MCBench: Bian et al., MLSys 2024): E of the sender and
// D of the receiver, both columns x rank. With the operations of low_rank.h, X given and G the
// gradient of what arrives:
//
//   begin, orthogonalise   E and D, alike                (on the layout of the transposed matrices)
//   multiply_right         Z = X E at the sender               then: Z to the receiver
//   restore                X' = Z D^T
//   multiply_right         W = G D at the receiver             then: W to the sender
//   restore                W E^T, the gradient of X
//   multiply_left          G^T Z and X^T W, the gradients of D and E at the two ends: learn
//
// Host bodies and kernels, equal to the bit. Called by the algorithms in collectives/.
//
// Also read by objects of any instruction set and by kernels: nothing here may become a shared
// symbol.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/threefry.h"

namespace slimwire {

// Of weights that learn by Adam (Kingma, Ba 2014): one gradient more, and, where `rate` is not 0,
// the step by the sum of those since the step before. Elements whose square is not finite are left
// out, by a step with their sum.
struct LearnArgs {
    const float* gradient;  // `count`
    float* weights;         // 4 * count: weights, first moments, second moments, sums of gradients
    int64_t count;
    float rate;
    float first_scale, second_scale;  // 1 / (1 - 0.9^t), 1 / (1 - 0.999^t) in step t = 1, 2, ...
    int32_t max_blocks = 0;           // thread blocks of a kernel; 0: as many as run at once
};

// What is kept of the message forward that *number names: its bytes to `output`; of none of `kept`
// zeros, which *misses counts.
struct TakeKeptArgs {
    static constexpr int kMost = 64;
    const uint32_t* number;  // a device word
    void* output;            // 16-byte aligned, as those of `kept`
    uint32_t* misses;        // a device word
    int64_t bytes;           // a multiple of 16
    int32_t held;
    int32_t max_blocks = 0;
    uint32_t numbers[kMost];
    const void* kept[kMost];  // one may be `output`
};

struct LearntWeight {
    float weight, first, second, sum;
};

SLIMWIRE_EVERYWHERE float square_root(float x) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
}

SLIMWIRE_EVERYWHERE LearntWeight
learnt(LearntWeight w, float gradient, float rate, float first_scale, float second_scale) {
    const float sum = w.sum + gradient;
    const float square = sum * sum;
    if (square - square != 0) {  // not finite
        w.sum = rate == 0 ? w.sum : 0;
        return w;
    }
    w.sum = sum;
    if (rate == 0) {
        return w;
    }
    const float first = 0.9f * w.first, second = 0.999f * w.second;
    w.first = first + 0.1f * sum;
    w.second = second + 0.001f * square;
    const float length = square_root(second_scale * w.second) + 1e-8f;
    w.weight -= rate * (first_scale * w.first) / length;
    w.sum = 0;
    return w;
}

SLIMWIRE_OPERATION(learn, LearnArgs)
SLIMWIRE_OPERATION(take_kept, TakeKeptArgs)

}  // namespace slimwire
