// Kernels of estimate.h; byte for byte the bodies of estimate.cpp. A thread takes eight neighbours
// of a chunk.
#include "codecs/gpu/elements.cuh"
#include "codecs/gpu/work.cuh"
#include "codecs/residual/estimate.h"

namespace slimwire {
namespace {

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    difference_kernel(DifferenceArgs args, Work work) {
    const float factor = encode_factor<Element>(args);
    work.walk(thread_index(), thread_total(), kPerThread, [&](int64_t, int64_t unit, int64_t) {
        const int64_t i = unit * kPerThread;
        Eight x, estimate;
        load_eight<Element>(static_cast<const uint8_t*>(args.input), i, args.count, x);
        load_eight<Float32>(reinterpret_cast<const uint8_t*>(args.estimate), i, args.count,
                            estimate);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const float given = __fmul_rn(factor, x.v[k]);
            const float difference = __fsub_rn(given, estimate.v[k]);
            const bool left = magnitude_of(difference) == kInfinityBits &&
                              magnitude_of(given) < kInfinityBits &&
                              magnitude_of(estimate.v[k]) < kInfinityBits;
            x.v[k] =
                left ? __uint_as_float(__float_as_uint(difference) - 1) : canonical(difference);
        }
        store_eight<Float32>(reinterpret_cast<uint8_t*>(args.output), i, args.count, x);
    });
}

__global__ void __launch_bounds__(kThreads, kResidentBlocks) mark_kernel(MarkArgs args, Work work) {
    work.walk(thread_index(), thread_total(), kPerThread,
              [&](int64_t chunk, int64_t unit, int64_t elems) {
                  Eight x;
                  load_eight<Float32>(
                      reinterpret_cast<const uint8_t*>(args.estimate + chunk * args.chunk_elems),
                      unit * kPerThread, elems, x);
                  bool finite = true;
#pragma unroll
                  for (int k = 0; k < kPerThread; ++k) {
                      finite = finite && magnitude_of(x.v[k]) < kInfinityBits;
                  }
                  if (!finite) {
                      args.marks[chunk] = 1;  // all that write write the same
                  }
              });
}

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    settle_kernel(SettleArgs args, Work work) {
    const int64_t element_bytes = args.dtype == DType::kFloat32 ? 4 : 2;
    work.walk(
        thread_index(), thread_total(), kPerThread,
        [&](int64_t chunk, int64_t unit, int64_t elems) {
            const int64_t begin = chunk * args.chunk_elems;
            const int64_t i = unit * kPerThread;
            auto* const estimate = reinterpret_cast<uint8_t*>(args.estimate + begin);
            if (args.output != nullptr) {
                Eight x;
                load_eight<Float32>(estimate, i, elems, x);
                limit_sums(args.sum_limit, x);
                deliver(args.dtype, static_cast<uint8_t*>(args.output) + begin * element_bytes, i,
                        elems, false, x);
            }
            if (args.marks[chunk] == 0) {
                return;
            }
            const Eight zero = {};
            store_eight<Float32>(estimate, i, elems, zero);
            if (args.own != nullptr) {
                store_eight<Float32>(reinterpret_cast<uint8_t*>(args.own + begin), i, elems, zero);
            }
        });
}

}  // namespace

cudaError_t difference_on_cuda(const DifferenceArgs& args, cudaStream_t stream) {
    return visit(args.dtype, [&](auto element) {
        return launch_eights(difference_kernel<decltype(element)>, args, args.count, args.count,
                             stream);
    });
}

cudaError_t mark_on_cuda(const MarkArgs& args, cudaStream_t stream) {
    return launch_eights(mark_kernel, args, args.count, args.chunk_elems, stream);
}

cudaError_t settle_on_cuda(const SettleArgs& args, cudaStream_t stream) {
    return launch_eights(settle_kernel, args, args.count, args.chunk_elems, stream);
}

}  // namespace slimwire
