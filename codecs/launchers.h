// Launchers of the kernels of a codec, for its descriptor (codec.h).
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/args.h"

namespace slimwire {

// Launchers of the kernels; null members in a build without CUDA, where HostOps has null, and of
// palette, which works in host memory alone. They enqueue on `stream` of the current device (one
// launch up to 256 KiB of input) and return the launch error; no allocation, no synchronisation.
struct CudaOps {
    cudaError_t (*encode)(const EncodeArgs&, cudaStream_t stream);
    cudaError_t (*decode)(const DecodeArgs&, cudaStream_t stream);
    cudaError_t (*decode_reduce_encode)(const DecodeReduceEncodeArgs&, cudaStream_t stream);
    cudaError_t (*decode_reduce)(const DecodeReduceArgs&, cudaStream_t stream) = nullptr;
};

// `Kernels` is defined where the kernels are (codecs/gpu/work.cuh says what it has), and its
// launchers are instantiated there.
template <class Kernels>
struct Launchers {
    SLIMWIRE_LAUNCHER static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t reduce(const DecodeReduceEncodeArgs& args,
                                                cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);

    static constexpr CudaOps kOps = {encode, decode, reduce, sum};
};

}  // namespace slimwire
