#include "codecs/residual/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codecs/launch.h"
#include "codecs/numeric.h"
#include "codecs/simd/chunks.h"
#include "codecs/simd/single_elements.h"

namespace slimwire {
namespace {

bool is_finite(float value) noexcept {
    return (std::bit_cast<uint32_t>(value) & kMagnitudeMask) < kInfinityBits;
}

}  // namespace

void difference_on_host(const DifferenceArgs& args) {
    if (args.count <= 0) {
        return;
    }
    const FloatEnvironment environment;
    const float factor = scale_factor(args.scale, args.scale_ptr, args.dtype);
    constexpr auto kLargest = std::bit_cast<float>(kMaxFloat32Bits);
    const auto* estimate = device_view_as<const float>(args.estimate);
    auto* output = device_view_as<float>(args.output);
    visit_single(args.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto* input = device_view_as<const typename Element::Bits>(args.input);
        for (int64_t i = 0; i < args.count; ++i) {
            const float given = factor * Element::get(input[i]);
            const float difference = given - estimate[i];
            const bool left = !is_finite(difference) && is_finite(given) && is_finite(estimate[i]);
            output[i] = SingleFloat32::put(left ? std::copysign(kLargest, difference) : difference);
        }
    });
}

void mark_on_host(const MarkArgs& args) {
    const auto* estimate = device_view_as<const float>(args.estimate);
    auto* marks = device_view_as<uint32_t>(args.marks);
    for (int64_t begin = 0; begin < args.count; begin += args.chunk_elems) {
        const int64_t end = std::min(begin + args.chunk_elems, args.count);
        if (!std::all_of(estimate + begin, estimate + end, is_finite)) {
            marks[begin / args.chunk_elems] = 1;
        }
    }
}

void settle_on_host(const SettleArgs& args) {
    if (args.count <= 0) {
        return;
    }
    auto* estimate = device_view_as<float>(args.estimate);
    auto* own = device_view_as<float>(args.own);
    const auto* marks = device_view_as<const uint32_t>(args.marks);
    if (args.output != nullptr) {
        visit_single(args.dtype, [&](auto element) {
            using Element = decltype(element);
            auto* output = device_view_as<typename Element::Bits>(args.output);
            for (int64_t i = 0; i < args.count; ++i) {
                const float magnitude = std::abs(estimate[i]);
                const SumLimit& limit = args.sum_limit;
                output[i] =
                    Element::put(magnitude <= limit.most || !is_finite(estimate[i]) ? estimate[i]
                                 : magnitude >= limit.most * limit.overflow
                                     ? std::copysign(kNoSumLimit, estimate[i])
                                     : std::copysign(limit.most, estimate[i]));
            }
        });
    }
    for (int64_t begin = 0; begin < args.count; begin += args.chunk_elems) {
        if (marks[begin / args.chunk_elems] == 0) {
            continue;
        }
        const int64_t end = std::min(begin + args.chunk_elems, args.count);
        std::fill(estimate + begin, estimate + end, 0.0f);
        if (own != nullptr) {
            std::fill(own + begin, own + end, 0.0f);
        }
    }
}

SLIMWIRE_ENQUEUE(difference, DifferenceArgs)
SLIMWIRE_ENQUEUE(mark, MarkArgs)
SLIMWIRE_ENQUEUE(settle, SettleArgs)

}  // namespace slimwire
