// Kernels of step_ahead.h; bit for bit the host bodies of step_ahead.cpp.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/lane_sums.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/residual/step_ahead_math.h"
#include "codecs/residual/stored_residuals.cuh"

namespace slimwire {
namespace {

template <class Element, class Reduced>
__global__ void __launch_bounds__(kMeasureThreads) step_size_kernel(StepSizeArgs args) {
    __shared__ double dots[kMeasureThreads], squares[kMeasureThreads];
    const auto* now = static_cast<const uint8_t*>(args.now);
    auto* before = static_cast<uint8_t*>(args.before);
    const auto* reduced = static_cast<const uint8_t*>(args.reduced);
    double dot = 0, square = 0;
    for (int64_t i = thread_index(); i < args.count; i += kMeasureLanes) {
        const int64_t at = i * Element::kBytes;
        if (reduced != nullptr) {
            const float x = Element::get(before + at), y = Element::get(now + at);
            const float g = Reduced::get(reduced + i * Reduced::kBytes);
            if (is_finite_float(x) && is_finite_float(y) && is_finite_float(g)) {
                const double wide = static_cast<double>(g);
                const double moved = __dsub_rn(static_cast<double>(x), static_cast<double>(y));
                dot = __dadd_rn(dot, __dmul_rn(moved, wide));
                square = __dadd_rn(square, __dmul_rn(wide, wide));
            }
        }
        if constexpr (Element::kBytes == 4) {
            *reinterpret_cast<uint32_t*>(before + at) =
                *reinterpret_cast<const uint32_t*>(now + at);
        } else {
            *reinterpret_cast<uint16_t*>(before + at) =
                *reinterpret_cast<const uint16_t*>(now + at);
        }
    }
    dots[threadIdx.x] = dot;
    squares[threadIdx.x] = square;
    sum_in_pairs(dots, squares, kMeasureThreads);
    if (threadIdx.x == 0) {
        args.work->dots[blockIdx.x] = dots[0];
        args.work->squares[blockIdx.x] = squares[0];
    }
}

__global__ void __launch_bounds__(kMeasureBlocks) count_step_kernel(StepSizeArgs args) {
    __shared__ double dots[kMeasureBlocks], squares[kMeasureBlocks];
    dots[threadIdx.x] = args.work->dots[threadIdx.x];
    squares[threadIdx.x] = args.work->squares[threadIdx.x];
    sum_in_pairs(dots, squares, kMeasureBlocks);
    if (threadIdx.x == 0) {
        count_step(dots[0], squares[0], args.step);
    }
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    shift_kernel(ShiftArgs args, Work work) {
    const float step = args.step == nullptr ? args.scale : __fmul_rn(args.scale, args.step->size);
    if (step == 0) {
        return;
    }
    auto* const parameters = static_cast<uint8_t*>(args.parameters);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = unit * kPerThread;
        Eight e, x;
        load_stored(args.stored, i, args.count, e);
        load_eight<Element>(parameters, i, args.count, x);
        Eight next;
        bool all = i + kPerThread <= args.count && is_aligned16(parameters);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            next.v[k] = shifted(x.v[k], step, e.v[k], largest_bits(args.dtype));
            all = all && !is_nan(next.v[k]);
        }
        if (all) {
            store_eight<Element>(parameters, i, args.count, next);
            return;
        }
        // Bits of a NaN stay.
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if (i + k < args.count && __float_as_uint(next.v[k]) != __float_as_uint(x.v[k])) {
                Element::put(parameters + (i + k) * Element::kBytes, next.v[k]);
            }
        }
    });
}

}  // namespace

cudaError_t find_step_size_on_cuda(const StepSizeArgs& args, cudaStream_t stream) {
    const cudaError_t error = visit(args.dtype, [&](auto element) {
        return visit(args.reduced_dtype, [&](auto reduced) {
            return start_kernel(step_size_kernel<decltype(element), decltype(reduced)>,
                                kMeasureBlocks, kMeasureThreads, 0, stream, args);
        });
    });
    return error != cudaSuccess || args.reduced == nullptr
               ? error
               : start_kernel(count_step_kernel, 1, kMeasureBlocks, 0, stream, args);
}

cudaError_t shift_on_cuda(const ShiftArgs& args, cudaStream_t stream) {
    return visit(args.dtype, [&](auto element) {
        return launch_eights(shift_kernel<decltype(element)>, args, args.count, args.count, stream);
    });
}

}  // namespace slimwire
