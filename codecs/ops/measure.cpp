#include "codecs/ops/measure.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "codecs/launch.h"
#include "codecs/numeric.h"
#include "codecs/simd/chunks.h"
#include "codecs/simd/lane_sums.h"
#include "codecs/simd/single_elements.h"

namespace slimwire {

void measure_on_host(const MeasureArgs& args) {
    const FloatEnvironment environment;
    const auto* input = device_view_as<const uint8_t>(args.input);
    const auto* other = device_view_as<const uint8_t>(args.other);
    const float factor = scale_factor(args.scale, args.scale_ptr, args.dtype);
    std::vector<double> squares(kMeasureLanes), errors(kMeasureLanes);
    auto& result = *device_view_as<Measured>(args.result);
    Measured found{};
    uint32_t largest = 0;
    for (int64_t begin = 0; begin < args.count; begin += kMeasureLanes) {
        const int64_t lanes = std::min(kMeasureLanes, args.count - begin);
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const float p = factor * single_element(input, begin + lane, args.dtype);
            const uint32_t magnitude = std::bit_cast<uint32_t>(p) & kMagnitudeMask;
            ++found.exponents[magnitude >> 23];
            if (magnitude >= kInfinityBits) {
                ++found.nonfinite;
                continue;
            }
            found.zeros += magnitude == 0 ? 1 : 0;
            largest = std::max(largest, magnitude);
            const double wide = static_cast<double>(p);
            squares[static_cast<size_t>(lane)] += wide * wide;
            if (other != nullptr) {
                const float o = single_element(other, begin + lane, args.dtype);
                if ((std::bit_cast<uint32_t>(o) & kMagnitudeMask) < kInfinityBits) {
                    const double error = wide - static_cast<double>(o);
                    errors[static_cast<size_t>(lane)] += error * error;
                }
            }
        }
    }
    result.square_sum = sum_of_lanes(&squares);
    result.error_square_sum = sum_of_lanes(&errors);
    result.zeros = found.zeros;
    result.nonfinite = found.nonfinite;
    result.largest = std::bit_cast<float>(largest);
    std::memcpy(result.exponents, found.exponents, sizeof found.exponents);
    std::atomic_ref(result.done).store(args.mark, std::memory_order_release);
}

namespace {

// Of a number of at least 1, to 2^-48; digit by digit, because a library that is loaded into every
// process shall not bring libm for this.
double log2_of_count(uint64_t count) noexcept {
    const int whole = std::bit_width(count) - 1;
    double rest = static_cast<double>(count) / static_cast<double>(uint64_t{1} << whole);
    double bits = whole;
    for (double digit = 0.5; digit >= 0x1p-48; digit /= 2) {
        rest *= rest;
        if (rest >= 2) {
            rest /= 2;
            bits += digit;
        }
    }
    return bits;
}

}  // namespace

double exponent_entropy_bits(const uint32_t (&exponents)[256]) noexcept {
    uint64_t total = 0;
    double weighted = 0;
    for (const uint32_t count : exponents) {
        total += count;
        weighted += count == 0 ? 0 : count * log2_of_count(count);
    }
    return total == 0 ? 0 : log2_of_count(total) - weighted / static_cast<double>(total);
}

SLIMWIRE_ENQUEUE(measure, MeasureArgs)

}  // namespace slimwire
