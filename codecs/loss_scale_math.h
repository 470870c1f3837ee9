// Arithmetic of loss_scale.h, for host bodies and kernels.
#pragma once

#include <cstdint>

#include "codecs/feedback_math.h"
#include "codecs/loss_scale_args.h"

namespace slimwire {

// Which bits of a word say that an element of it is not finite: its exponent is all ones, so that
// adding one to the exponent carries into the place of the sign. Two elements of 16 bits do not
// meet: the lower one's carry ends below the upper one.
struct NonfiniteBits {
    uint32_t exponent, one, carry;

    SLIMWIRE_EVERYWHERE NonfiniteBits of(DType dtype) {
        if (dtype == DType::kFloat32) {
            return {0x7F800000u, 0x00800000u, 0x80000000u};
        }
        return dtype == DType::kFloat16 ? NonfiniteBits{0x7C007C00u, 0x04000400u, 0x80008000u}
                                        : NonfiniteBits{0x7F807F80u, 0x00800080u, 0x80008000u};
    }
};

// What `bits.carry` has a bit of where an element of the word is not finite.
SLIMWIRE_EVERYWHERE uint32_t carried(uint32_t word, const NonfiniteBits& bits) {
    return (word & bits.exponent) + bits.one;
}

SLIMWIRE_EVERYWHERE void advance_scale(ReplayedScale& state, const AdvanceScaleArgs& args) {
    float scale = 1;
    if (args.step == 0) {
        state.good_steps = 0;
        state.bad_left = args.hysteresis;
    } else {
        const uint64_t before = (args.step - 1) % kScaledSteps;
        const bool bad = state.bad != 0;
        scale = state.scales[before];
        float next = scale;
        state.skipped[before] = bad ? 1 : 0;
        if (bad) {
            state.good_steps = 0;
            state.bad_left -= state.bad_left > 0 ? 1 : 0;
            next = state.bad_left == 0 ? scale * args.backoff : scale;
        } else if (++state.good_steps == args.interval) {
            state.good_steps = 0;
            state.bad_left = args.hysteresis;
            next = scale * args.growth;
        }
        // What leaves the range of normal numbers has no factor any more.
        const uint32_t magnitude = residual_magnitude(next);
        scale = magnitude >= 0x00800000u && magnitude < kInfinityBits ? next : scale;
    }
    state.bad = 0;
    state.scales[args.step % kScaledSteps] = scale;
}

}  // namespace slimwire
