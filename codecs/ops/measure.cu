// Kernels of measure.h; bit for bit the host body of measure.cpp. The first looks at the elements
// and leaves a partial sum a block; the second, of one block, adds those up, hands over the result
// and leaves the work memory zeroed.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/lane_sums.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/ops/measure.h"

namespace slimwire {
namespace {

struct MeasureShared {
    double squares[kMeasureThreads], errors[kMeasureThreads];
    uint32_t exponents[256];
};

template <class Element>
__global__ void __launch_bounds__(kMeasureThreads) measure_kernel(MeasureArgs args) {
    __shared__ MeasureShared shared;
    shared.exponents[threadIdx.x] = 0;
    __syncthreads();
    const auto* input = static_cast<const uint8_t*>(args.input);
    const auto* other = static_cast<const uint8_t*>(args.other);
    const float factor =
        args.scale_ptr == nullptr
            ? args.scale
            : __fmul_rn(args.scale, Element::get(static_cast<const uint8_t*>(args.scale_ptr)));
    double squares = 0, errors = 0;
    unsigned long long zeros = 0, nonfinite = 0;
    uint32_t largest = 0;
    for (int64_t i = thread_index(); i < args.count; i += kMeasureLanes) {
        const float p = __fmul_rn(factor, Element::get(input + i * Element::kBytes));
        const uint32_t magnitude = magnitude_of(p);
        atomicAdd(&shared.exponents[magnitude >> 23], 1u);
        if (magnitude >= kInfinityBits) {
            ++nonfinite;
            continue;
        }
        zeros += magnitude == 0 ? 1 : 0;
        largest = magnitude > largest ? magnitude : largest;
        const double wide = static_cast<double>(p);
        squares = __dadd_rn(squares, __dmul_rn(wide, wide));
        if (other != nullptr) {
            const float o = Element::get(other + i * Element::kBytes);
            if (magnitude_of(o) < kInfinityBits) {
                const double error = __dsub_rn(wide, static_cast<double>(o));
                errors = __dadd_rn(errors, __dmul_rn(error, error));
            }
        }
    }
    shared.squares[threadIdx.x] = squares;
    shared.errors[threadIdx.x] = errors;
    sum_in_pairs(shared.squares, shared.errors, kMeasureThreads);
    MeasureWork& work = *args.work;
    if (threadIdx.x == 0) {
        work.squares[blockIdx.x] = shared.squares[0];
        work.errors[blockIdx.x] = shared.errors[0];
    }
    if (zeros != 0) {
        atomicAdd(&work.zeros, zeros);
    }
    if (nonfinite != 0) {
        atomicAdd(&work.nonfinite, nonfinite);
    }
    if (largest != 0) {
        atomicMax(&work.largest, largest);
    }
    if (shared.exponents[threadIdx.x] != 0) {
        atomicAdd(&work.exponents[threadIdx.x], shared.exponents[threadIdx.x]);
    }
}

__global__ void __launch_bounds__(kMeasureThreads) measured_kernel(MeasureArgs args) {
    __shared__ double squares[kMeasureBlocks], errors[kMeasureBlocks];
    MeasureWork& work = *args.work;
    Measured& result = *args.result;
    if (threadIdx.x < kMeasureBlocks) {
        squares[threadIdx.x] = work.squares[threadIdx.x];
        errors[threadIdx.x] = work.errors[threadIdx.x];
    }
    sum_in_pairs(squares, errors, kMeasureBlocks);
    result.exponents[threadIdx.x] = work.exponents[threadIdx.x];
    work.exponents[threadIdx.x] = 0;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    result.square_sum = squares[0];
    result.error_square_sum = errors[0];
    result.zeros = work.zeros;
    result.nonfinite = work.nonfinite;
    result.largest = __uint_as_float(work.largest);
    work.zeros = 0;
    work.nonfinite = 0;
    work.largest = 0;
    __threadfence_system();
    *static_cast<volatile uint32_t*>(&result.done) = args.mark;
}

}  // namespace

cudaError_t measure_on_cuda(const MeasureArgs& args, cudaStream_t stream) {
    const cudaError_t error = visit(args.dtype, [&](auto element) {
        return start_kernel(measure_kernel<decltype(element)>, kMeasureBlocks, kMeasureThreads, 0,
                            stream, args);
    });
    return error != cudaSuccess
               ? error
               : start_kernel(measured_kernel, 1, kMeasureThreads, 0, stream, args);
}

}  // namespace slimwire
