// Kernel of move_ranges.h. A thread takes eight neighbours of the message, which lie in one chunk;
// where they also lie in one range and both places allow it, by accesses of 16 bytes.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/ops/move_ranges.h"

namespace slimwire {
namespace {

static_assert(kMovedTogether == kPerThread);

template <class Element>
__device__ __forceinline__ void move_one(const uint8_t* from,
                                         uint8_t* to,
                                         bool as_it_is,
                                         float factor) {
    if (!as_it_is) {
        Element::put(to, canonical(__fmul_rn(factor, Element::get(from))));
    } else if constexpr (Element::kBytes == 4) {
        *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
    } else {
        *reinterpret_cast<uint16_t*>(to) = *reinterpret_cast<const uint16_t*>(from);
    }
}

// The range of element i, which is not before the first.
__device__ __forceinline__ int32_t range_of(const MoveRangesArgs& args, int64_t i) {
    int32_t low = 0, high = args.ranges;
    while (high - low > 1) {
        const int32_t middle = (low + high) / 2;
        if (args.list[middle].begin <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    move_ranges_kernel(const __grid_constant__ MoveRangesArgs args, Work work) {
    constexpr int kBytes = Element::kBytes;
    const bool as_it_is = args.scale == 1.0f && args.scale_ptr == nullptr;
    const float factor = as_it_is ? 1.0f : encode_factor<Element>(args);
    const int64_t first = args.list[0].begin;
    auto* const buffer = static_cast<uint8_t*>(args.buffer);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = first / kPerThread * kPerThread + unit * kPerThread;
        const int64_t chunk = i / args.chunk_elems;
        uint8_t* const inside = static_cast<uint8_t*>(args.chunks) + chunk * args.chunk_bytes +
                                (i - chunk * args.chunk_elems) * kBytes;
        int32_t range = range_of(args, i);
        const auto end_of = [&](int32_t r) {
            return r + 1 < args.ranges ? args.list[r + 1].begin : args.end;
        };
        const auto outside_of = [&](int64_t element) {
            return buffer + (args.list[range].element + element - args.list[range].begin) * kBytes;
        };
        if (as_it_is && first <= i && i + kPerThread <= end_of(range)) {
            uint8_t* const outside = outside_of(i);
            if (is_aligned16(outside)) {
                const auto* const from =
                    reinterpret_cast<const uint4*>(args.to_chunks ? outside : inside);
                auto* const to = reinterpret_cast<uint4*>(args.to_chunks ? inside : outside);
#pragma unroll
                for (int k = 0; k < kPerThread * kBytes / 16; ++k) {
                    to[k] = from[k];
                }
                return;
            }
        }
        for (int k = 0; k < kPerThread; ++k) {
            if (i + k < first || i + k >= args.end) {
                continue;
            }
            while (i + k >= end_of(range)) {
                ++range;
            }
            uint8_t* const outside = outside_of(i + k);
            move_one<Element>(args.to_chunks ? outside : inside + k * kBytes,
                              args.to_chunks ? inside + k * kBytes : outside, as_it_is, factor);
        }
    });
}

}  // namespace

cudaError_t move_ranges_on_cuda(const MoveRangesArgs& args, cudaStream_t stream) {
    if (args.ranges <= 0 || args.end <= args.list[0].begin) {
        return cudaSuccess;
    }
    const int64_t count = args.end - args.list[0].begin / kPerThread * kPerThread;
    return visit(args.dtype, [&](auto element) {
        return launch_eights(move_ranges_kernel<decltype(element)>, args, count, count, stream);
    });
}

}  // namespace slimwire
