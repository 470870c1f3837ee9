// Arithmetic of step_ahead.h, one value at a time, for host bodies and kernels: plain operations
// that round once each, nothing contracted. Nothing here may become a shared symbol.
#pragma once

#include <cstdint>

#include "codecs/residual/residual_math.h"
#include "codecs/residual/step_ahead.h"

namespace slimwire {

SLIMWIRE_EVERYWHERE bool is_finite_float(float x) {
    return residual_magnitude(x) < kInfinityBits;
}

// The largest magnitude of the type, as fp32 has it.
SLIMWIRE_EVERYWHERE uint32_t largest_bits(DType dtype) {
    return dtype == DType::kFloat32   ? kInfinityBits - 1
           : dtype == DType::kFloat16 ? kMaxFloat16Bits
                                      : kMaxBfloat16Bits;
}

// What a parameter becomes, in fp32; itself where it stays.
SLIMWIRE_EVERYWHERE float shifted(float parameter, float step, float residual, uint32_t largest) {
    const float by = step * residual;
    const float next = parameter - by;
    return step == 0 || residual_magnitude(next) > largest ? parameter : next;
}

// One step more, of these two sums.
SLIMWIRE_EVERYWHERE void count_step(double dot, double square, StepSize* step) {
    const double size = dot / square;
    // Both comparisons are false of a NaN.
    if (dot == 0 || !(square > 0) || !(size > -1e30 && size < 1e30)) {
        return;
    }
    const uint32_t counted = step->counted + 1;
    const double even = 1.0 / static_cast<double>(counted);
    const double weight = even > kLeastStepWeight ? even : kLeastStepWeight;
    const double difference = size - step->mean;
    const double part = weight * difference;
    step->mean = step->mean + part;
    step->size = step->mean > 0 ? static_cast<float>(step->mean) : 0.0f;
    step->counted = counted == 0xFFFFFFFFu ? 0x80000000u : counted;
}

}  // namespace slimwire
