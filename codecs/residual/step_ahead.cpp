#include "codecs/residual/step_ahead.h"

#include <cstring>
#include <vector>

#include "codecs/launch.h"
#include "codecs/residual/step_ahead_math.h"
#include "codecs/residual/stored_residuals.h"
#include "codecs/simd/float_environment.h"
#include "codecs/simd/lane_sums.h"
#include "codecs/simd/single_elements.h"

namespace slimwire {
void find_step_size_on_host(const StepSizeArgs& args) {
    const FloatEnvironment environment;
    const auto* now = device_view_as<const uint8_t>(args.now);
    auto* before = device_view_as<uint8_t>(args.before);
    if (args.reduced != nullptr) {
        const auto* reduced = device_view_as<const uint8_t>(args.reduced);
        std::vector<double> dots(kMeasureLanes), squares(kMeasureLanes);
        for (int64_t i = 0; i < args.count; ++i) {
            const float x = single_element(before, i, args.dtype),
                        y = single_element(now, i, args.dtype);
            const float g = single_element(reduced, i, args.reduced_dtype);
            if (is_finite_float(x) && is_finite_float(y) && is_finite_float(g)) {
                const auto lane = static_cast<size_t>(i % kMeasureLanes);
                const double wide = static_cast<double>(g);
                const double moved = static_cast<double>(x) - static_cast<double>(y);
                dots[lane] += moved * wide;
                squares[lane] += wide * wide;
            }
        }
        count_step(sum_of_lanes(&dots), sum_of_lanes(&squares),
                   device_view_as<StepSize>(args.step));
    }
    std::memcpy(before, now, static_cast<size_t>(args.count) * dtype_bytes(args.dtype));
}

void shift_on_host(const ShiftArgs& args) {
    const FloatEnvironment environment;
    const float step = args.step == nullptr
                           ? args.scale
                           : args.scale * device_view_as<const StepSize>(args.step)->size;
    if (args.count <= 0 || step == 0) {
        return;
    }
    const StoredView stored = StoredView::of(args.stored);
    auto* parameters = device_view_as<uint8_t>(args.parameters);
    for (int64_t i = 0; i < args.count; ++i) {
        const float x = single_element(parameters, i, args.dtype);
        const float next = shifted(x, step, stored.value(i), largest_bits(args.dtype));
        // Bits of a NaN, and of what the type would round away, stay.
        if (bits_of_float(next) != bits_of_float(x)) {
            put_single_element(parameters, i, args.dtype, next);
        }
    }
}

SLIMWIRE_ENQUEUE(find_step_size, StepSizeArgs)
SLIMWIRE_ENQUEUE(shift, ShiftArgs)

}  // namespace slimwire
