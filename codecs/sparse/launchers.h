// Launchers of the kernels of the sparsifiers; see CudaOps (codec.h).
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/args.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {

// topk and threshold take one launch; the others one up to 256 KiB, above it some two.
template <SparseKind kKind>
struct SparseCuda {
    SLIMWIRE_LAUNCHER static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t reduce(const DecodeReduceEncodeArgs& args,
                                                cudaStream_t stream);
    SLIMWIRE_LAUNCHER static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
    SLIMWIRE_LAUNCHER static int64_t workspace_bytes(const CodecParams& params,
                                                     DType dtype,
                                                     int64_t count,
                                                     int64_t chunk_elems);
};

}  // namespace slimwire
