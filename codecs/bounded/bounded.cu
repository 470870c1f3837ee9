// Kernels of codec bounded. See bounded.cuh.
#include "codecs/bounded/bounded.cuh"

namespace slimwire {

cudaError_t BoundedCuda::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const BoundedWork work = bounded_work(args.params, args.dtype, args.count, args.chunk_elems);
    unsigned grid = 0;
    const int64_t units = work.chunks * work.tiles * kBoundedWarps;
    if (const cudaError_t error = bounded_grid(args.max_blocks, units, &grid);
        error != cudaSuccess) {
        return error;
    }
    return visit(args.dtype, [&](auto element) {
        return start_kernel(bounded_encode_kernel<decltype(element)>, grid, kThreads, 0, stream,
                            args, work);
    });
}

cudaError_t BoundedCuda::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const BoundedWork bounded = bounded_work(args.params, args.dtype, args.count, args.chunk_elems);
    const Work work = Work::of(args.count, args.chunk_elems, kBoundedGroup);
    unsigned grid = 0;
    if (const cudaError_t error = bounded_grid(args.max_blocks, work.chunks * work.units, &grid);
        error != cudaSuccess) {
        return error;
    }
    return visit(args.dtype, [&](auto element) {
        return start_kernel(bounded_decode_kernel<decltype(element)>, grid, kThreads, 0, stream,
                            args, bounded, work);
    });
}

cudaError_t BoundedCuda::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const BoundedWork work = bounded_work(args.params, args.dtype, args.count, args.count);
    unsigned grid = 0;
    if (const cudaError_t error = bounded_grid(args.max_blocks, work.tiles * kBoundedWarps, &grid);
        error != cudaSuccess) {
        return error;
    }
    return start_kernel(bounded_reduce_kernel, grid, kThreads, 0, stream, args, work);
}

cudaError_t BoundedCuda::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    if (args.count <= 0 || args.inputs <= 0) {
        return cudaSuccess;
    }
    const BoundedWork bounded = bounded_work(args.params, args.dtype, args.count, args.count);
    const Work work = Work::of(args.count, args.count, kBoundedGroup);
    unsigned grid = 0;
    if (const cudaError_t error = bounded_grid(args.max_blocks, work.units, &grid);
        error != cudaSuccess) {
        return error;
    }
    return start_kernel(bounded_sum_kernel, grid, kThreads, 0, stream, args, bounded, work);
}

}  // namespace slimwire
