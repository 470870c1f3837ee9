// Kernels of sketch.h; bit for bit the host body of sketch.cpp. A thread block sums a part's rows,
// a thread eight of its cells; then a few blocks add the parts up.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/ops/sketch.h"

namespace slimwire {
namespace {

static_assert(kSketchUnit == kPerThread && kSketchUnits == kThreads);

__device__ __forceinline__ float* part_cells(const SketchArgs& args, int64_t part) {
    return static_cast<float*>(args.workspace) + part * kSketchCells;
}
// A word a part, behind their cells: 1 where something in it is not finite.
__device__ __forceinline__ uint32_t* part_marks(const SketchArgs& args, int64_t parts) {
    return reinterpret_cast<uint32_t*>(part_cells(args, parts));
}

// x.v[k] = x.v[k ^ swap], without indexing registers.
__device__ __forceinline__ void swap_neighbours(uint32_t swap, Eight& x) {
#pragma unroll
    for (int bit = 1; bit < kPerThread; bit *= 2) {
        const bool wanted = (swap & bit) != 0;
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            if ((k & bit) == 0) {
                const float low = x.v[k], high = x.v[k | bit];
                x.v[k] = wanted ? high : low;
                x.v[k | bit] = wanted ? low : high;
            }
        }
    }
}

template <class Element>
__global__ void __launch_bounds__(kThreads) sketch_kernel(SketchArgs args, SketchParts parts) {
    __shared__ uint32_t bad;
    if (threadIdx.x == 0) {
        bad = 0;
    }
    __syncthreads();
    const int64_t part = blockIdx.x;
    const int64_t last = (part + 1) * parts.rows_each;
    const int64_t end = last < parts.rows ? last : parts.rows;
    const auto* const input = static_cast<const uint8_t*>(args.input);
    Eight sum = {};
#pragma unroll 2
    for (int64_t number = part * parts.rows_each; number < end; ++number) {
        const SketchRow row = sketch_row(args.first_row + number);
        const uint32_t unit = (threadIdx.x - row.turn) % static_cast<uint32_t>(kSketchUnits);
        Eight x;
        load_eight<Element>(input, number * kSketchCells + unit * kSketchUnit, args.count, x);
        swap_neighbours(row.swap, x);
        const uint32_t signs = sketch_signs(row, unit);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            sum.v[k] = __fadd_rn(sum.v[k],
                                 __uint_as_float(__float_as_uint(x.v[k]) ^ (signs >> k & 1) << 31));
        }
    }
    bool finite = true;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        finite = finite && magnitude_of(sum.v[k]) < kInfinityBits;
    }
    if (!finite) {
        bad = 1;  // all that write write the same
    }
    store_eight<Float32>(reinterpret_cast<uint8_t*>(part_cells(args, part)),
                         int64_t{threadIdx.x} * kPerThread, kSketchCells, sum);
    __syncthreads();
    if (threadIdx.x == 0) {
        part_marks(args, parts.parts)[part] = bad;
    }
}

__global__ void __launch_bounds__(kThreads) sketched_kernel(SketchArgs args, SketchParts parts) {
    __shared__ uint32_t bad;
    if (threadIdx.x == 0) {
        bad = 0;
    }
    __syncthreads();
    const uint32_t* const marks = part_marks(args, parts.parts);
    for (int64_t part = threadIdx.x; part < parts.parts; part += kThreads) {
        if (marks[part] != 0) {
            bad = 1;
        }
    }
    __syncthreads();
    if (thread_index() == 0) {
        ++*(bad != 0 ? &args.state->skipped : &args.state->buffers);
    }
    if (bad != 0) {
        return;
    }
    const int64_t cell = thread_index();
    float sum = 0;
#pragma unroll 8
    for (int64_t part = 0; part < parts.parts; ++part) {
        sum = __fadd_rn(sum, part_cells(args, part)[cell]);
    }
    args.state->cells[cell] = canonical(__fadd_rn(args.state->cells[cell], sum));
}

}  // namespace

cudaError_t sketch_on_cuda(const SketchArgs& args, cudaStream_t stream) {
    const SketchParts parts = SketchParts::of(args.count);
    if (parts.parts > 0) {
        const cudaError_t error = visit(args.dtype, [&](auto element) {
            return start_kernel(sketch_kernel<decltype(element)>,
                                static_cast<unsigned>(parts.parts), kThreads, 0, stream, args,
                                parts);
        });
        if (error != cudaSuccess) {
            return error;
        }
    }
    return start_kernel(sketched_kernel, static_cast<unsigned>(kSketchCells / kThreads), kThreads,
                        0, stream, args, parts);
}

}  // namespace slimwire
