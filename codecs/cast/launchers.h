// Launchers of the kernels of the casts; see CudaOps (codec.h).
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/args.h"

namespace slimwire {

// CodecParams::scale_type of a cast: what finite values beyond fp16 become. Those beyond bf16
// saturate, as it has the range of fp32.
enum class CastOverflow : uint8_t { kInfinite = 0, kSaturate = 1 };

template <DType kTarget>
struct CastCuda {
    SLIMWIRE_LAUNCHER static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t reduce(const DecodeReduceEncodeArgs& args,
                                                cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
};

}  // namespace slimwire
