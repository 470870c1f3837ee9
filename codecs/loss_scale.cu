// Kernels of loss_scale.h. Looking takes 16 bytes a thread at a time, one thread the elements
// before the first and behind the last such line; advancing is one thread's.
#include "codecs/cuda/work.cuh"
#include "codecs/loss_scale_math.h"

namespace slimwire {
namespace {

constexpr int64_t kLineBytes = 16;

// The whole lines of a buffer, and the bytes before them.
struct Lines {
    int64_t before, lines;

    __host__ __device__ static Lines of(const void* begin, int64_t bytes) {
        const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kLineBytes);
        const int64_t before = beyond == 0 ? 0 : kLineBytes - beyond;
        return before < bytes ? Lines{before, (bytes - before) / kLineBytes} : Lines{bytes, 0};
    }
};

__device__ __forceinline__ uint32_t carried_of_elements(const uint8_t* begin,
                                                        const uint8_t* end,
                                                        int64_t element_bytes,
                                                        const NonfiniteBits& bits) {
    uint32_t any = 0;
    for (; begin < end; begin += element_bytes) {
        any |= carried(element_bytes == 4 ? *reinterpret_cast<const uint32_t*>(begin)
                                          : *reinterpret_cast<const uint16_t*>(begin),
                       bits);
    }
    return any;
}

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    look_for_nonfinite_kernel(LookForNonfiniteArgs args, Work work) {
    const NonfiniteBits bits = NonfiniteBits::of(args.dtype);
    const int64_t element_bytes = args.dtype == DType::kFloat32 ? 4 : 2;
    const int64_t bytes = args.count * element_bytes;
    const auto* const input = static_cast<const uint8_t*>(args.input);
    const Lines all = Lines::of(input, bytes);
    const uint8_t* const lines = input + all.before;
    uint32_t any = 0;
    work.walk(thread_index(), thread_total(), 1, [&](int64_t, int64_t unit, int64_t) {
        if (unit < all.lines) {
            const uint4 line = reinterpret_cast<const uint4*>(lines)[unit];
            any |= carried(line.x, bits) | carried(line.y, bits) | carried(line.z, bits) |
                   carried(line.w, bits);
        } else {
            any |= carried_of_elements(input, lines, element_bytes, bits);
            any |= carried_of_elements(lines + all.lines * kLineBytes, input + bytes, element_bytes,
                                       bits);
        }
    });
    if ((any & bits.carry) != 0) {
        *args.found = 1;  // by any thread that found one: the same value
    }
}

__global__ void advance_scale_kernel(AdvanceScaleArgs args) {
    advance_scale(*args.state, args);
}

}  // namespace

cudaError_t look_for_nonfinite_on_cuda(const LookForNonfiniteArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const int64_t bytes = args.count * (args.dtype == DType::kFloat32 ? 4 : 2);
    const int64_t units = Lines::of(args.input, bytes).lines + 1;  // the ends are one
    const Work work = Work::of(units, units, 1);
    return launch(look_for_nonfinite_kernel, args, work, threads_for(work, 1), stream);
}

cudaError_t advance_scale_on_cuda(const AdvanceScaleArgs& args, cudaStream_t stream) {
    return start_kernel(advance_scale_kernel, 1, 1, 0, stream, args);
}

}  // namespace slimwire
