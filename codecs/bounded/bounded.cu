// Kernels of codec bounded. See bounded.cuh.
#include "codecs/bounded/bounded.cuh"

namespace slimwire {

struct BoundedKernels {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        const BoundedWork work =
            bounded_work(args.params, args.dtype, args.count, args.chunk_elems);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(bounded_encode_kernel<decltype(element)>,
                                  work.chunks * work.tiles * kThreads, args.max_blocks, stream,
                                  args, work);
        });
    }

    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        const BoundedWork bounded =
            bounded_work(args.params, args.dtype, args.count, args.chunk_elems);
        const Work work = Work::of(args.count, args.chunk_elems, kBoundedGroup);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(bounded_decode_kernel<decltype(element)>,
                                  work.chunks * work.units * kWarpThreads, args.max_blocks, stream,
                                  args, bounded, work);
        });
    }

    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        const BoundedWork work = bounded_work(args.params, args.dtype, args.count, args.count);
        return launch_threads(bounded_reduce_kernel, work.tiles * kThreads, args.max_blocks, stream,
                              args, work);
    }

    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        const BoundedWork bounded = bounded_work(args.params, args.dtype, args.count, args.count);
        const Work work = Work::of(args.count, args.count, kBoundedGroup);
        return launch_threads(bounded_sum_kernel, work.units * kWarpThreads, args.max_blocks,
                              stream, args, bounded, work);
    }
};

template struct Launchers<BoundedKernels>;

}  // namespace slimwire
