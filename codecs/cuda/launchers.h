// Launchers of the kernels, one struct per family: declared for the descriptors, defined in the
// family's .cuh, instantiated by each member's .cu. One launch on `stream` of the current device;
// the launch error comes back; nothing is allocated or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/args.h"

namespace slimwire {

template <int kBits>
struct BlockIntCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
};

template <DType kTarget>
struct CastCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
};

template <DType kTarget>
struct Fp8Cuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
};

struct PaletteCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
};

}  // namespace slimwire
