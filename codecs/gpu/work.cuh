// How kernels divide their work and are launched: chunks of an operation cut into units (one
// thread's eight elements, or one warp's span), walked with a stride so that any grid is right.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "codecs/args.h"
#include "codecs/launchers.h"

namespace slimwire {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpThreads = 32;
// Thread blocks that must fit a multiprocessor: 64 registers a thread, or 80 where 64 would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kResidentBlocks = 3;
#else
constexpr int kResidentBlocks = 4;
#endif
// The same where a thread takes two spans: 80 registers, or 128.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kSpanBlocks = 2;
#else
constexpr int kSpanBlocks = 3;
#endif
constexpr int kBlocksPerProcessor = 8;  // fills a multiprocessor of 2048 threads

// Chunks of an operation and the units of each.
struct Work {
    int64_t count;        // elements
    int64_t chunk_elems;  // of every chunk but a short last one
    int64_t chunks;
    int64_t units;  // of a full chunk

    static Work of(int64_t count, int64_t chunk_elems, int64_t unit_elems) {
        if (chunk_elems > count) {
            chunk_elems = count;
        }
        return {count, chunk_elems, (count + chunk_elems - 1) / chunk_elems,
                (chunk_elems + unit_elems - 1) / unit_elems};
    }

    // Calls body(chunk, unit, elements of the chunk) for every unit of worker `worker` of
    // `workers`. Divides once; the units of a short last chunk that hold no element are passed
    // over.
    template <class Body>
    __device__ __forceinline__ void walk(int64_t worker,
                                         int64_t workers,
                                         int64_t unit_elems,
                                         Body body) const {
        int64_t chunk = worker / units;
        int64_t unit = worker - chunk * units;
        const int64_t chunk_step = workers / units;
        const int64_t unit_step = workers - chunk_step * units;
        while (chunk < chunks) {
            const int64_t left = count - chunk * chunk_elems;
            const int64_t elems = left < chunk_elems ? left : chunk_elems;
            if (unit * unit_elems < elems) {
                body(chunk, unit, elems);
            }
            chunk += chunk_step;
            unit += unit_step;
            if (unit >= units) {
                unit -= units;
                ++chunk;
            }
        }
    }
};

__device__ __forceinline__ int64_t thread_index() {
    return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t thread_total() {
    return int64_t{gridDim.x} * blockDim.x;
}

// Declares `name` as the block's dynamic shared memory, 16-byte aligned: what extern __shared__
// does, for compilers of both kinds.
#ifdef SLIMWIRE_CUDA_ON_HOST
#define SLIMWIRE_DYNAMIC_SHARED(type, name) \
    type* const name = static_cast<type*>(::cuda_on_host::Machine::get().dynamic_shared())
#else
#define SLIMWIRE_DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char slimwire_dynamic_shared[]; \
    type* const name = reinterpret_cast<type*>(slimwire_dynamic_shared)
#endif

// Multiprocessors of the current device, and one kernel launch. The tests' execution model brings
// its own (tests/support/cuda_on_host.h).
#ifdef SLIMWIRE_CUDA_ON_HOST
using cuda_on_host::processor_count;
using cuda_on_host::start_kernel;
#else
inline cudaError_t processor_count(int* count) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    return error != cudaSuccess
               ? error
               : cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

// `shared_bytes`: of dynamic shared memory; above 48 KiB after cudaFuncSetAttribute only.
template <class... Parameters>
cudaError_t start_kernel(void (*kernel)(Parameters...),
                         dim3 grid,
                         dim3 block,
                         size_t shared_bytes,
                         cudaStream_t stream,
                         const std::type_identity_t<Parameters>&... parameters) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers,
                            shared_bytes, stream);
}
#endif

// Blocks of at least `threads` threads, or as many as run at once and `max_blocks` allows.
inline cudaError_t blocks_for(int64_t threads, int32_t max_blocks, unsigned* blocks) {
    int processors = 0;
    const cudaError_t error = processor_count(&processors);
    const int64_t most = max_blocks > 0 ? max_blocks : int64_t{processors} * kBlocksPerProcessor;
    const int64_t wanted = threads > kThreads ? (threads + kThreads - 1) / kThreads : 1;
    *blocks = static_cast<unsigned>(wanted < most ? wanted : most);
    return error;
}

// One launch of kernel(parameters...) with the blocks_for() `threads`.
template <class... Parameters>
cudaError_t launch_threads(void (*kernel)(Parameters...),
                           int64_t threads,
                           int32_t max_blocks,
                           cudaStream_t stream,
                           const std::type_identity_t<Parameters>&... parameters) {
    unsigned blocks = 0;
    const cudaError_t error = blocks_for(threads, max_blocks, &blocks);
    return error != cudaSuccess ? error
                                : start_kernel(kernel, blocks, kThreads, 0, stream, parameters...);
}

// One launch of kernel(args, work), a unit of which takes `per_unit` threads.
template <class Args>
cudaError_t launch(void (*kernel)(Args, Work),
                   const Args& args,
                   const Work& work,
                   int64_t per_unit,
                   cudaStream_t stream) {
    return launch_threads(kernel, work.chunks * work.units * per_unit, args.max_blocks, stream,
                          args, work);
}

// The same over `count` elements in chunks, eight a thread; nothing where there are none.
template <class Args>
cudaError_t launch_eights(void (*kernel)(Args, Work),
                          const Args& args,
                          int64_t count,
                          int64_t chunk_elems,
                          cudaStream_t stream) {
    constexpr int64_t kEight = 8;
    return count <= 0 ? cudaSuccess
                      : launch(kernel, args, Work::of(count, chunk_elems, kEight), 1, stream);
}

// scale * *scale_ptr, read when the kernel runs.
template <class Element, class Args>
__device__ __forceinline__ float encode_factor(const Args& args) {
    if (args.scale_ptr == nullptr) {
        return args.scale;
    }
    return __fmul_rn(args.scale, Element::get(static_cast<const uint8_t*>(args.scale_ptr)));
}

}  // namespace

// The launchers of a codec: Kernels has encode, decode, reduce and sum with the same parameters,
// which launch the kernels for at least one element and one source.
template <class Kernels>
cudaError_t Launchers<Kernels>::encode(const EncodeArgs& args, cudaStream_t stream) {
    return args.count <= 0 ? cudaSuccess : Kernels::encode(args, stream);
}

template <class Kernels>
cudaError_t Launchers<Kernels>::decode(const DecodeArgs& args, cudaStream_t stream) {
    return args.count <= 0 ? cudaSuccess : Kernels::decode(args, stream);
}

template <class Kernels>
cudaError_t Launchers<Kernels>::reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
    return args.count <= 0 || args.inputs <= 0 ? cudaSuccess : Kernels::reduce(args, stream);
}

template <class Kernels>
cudaError_t Launchers<Kernels>::sum(const DecodeReduceArgs& args, cudaStream_t stream) {
    return args.count <= 0 || args.inputs <= 0 ? cudaSuccess : Kernels::sum(args, stream);
}

}  // namespace slimwire
