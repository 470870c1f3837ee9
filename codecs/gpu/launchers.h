// Launchers of the kernels, one struct per family: declared for the descriptors, defined and
// instantiated in the family's .cu files. One launch on `stream` of the current device;
// the launch error comes back; nothing is allocated or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/args.h"
#include "codecs/block_float/block_float_shape.h"
#include "codecs/quantizers/quantizer_shape.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {

template <int kBits>
struct BlockIntCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
};

template <DType kTarget>
struct CastCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
};

template <class Kind>
struct BlockFloatCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
};

template <class Kind>
struct QuantizerCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
};

struct BoundedCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
};

// Sparsifiers. topk and threshold take one launch; the others one up to 256 KiB, above it some two.
template <SparseKind kKind>
struct SparseCuda {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream);
    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream);
    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream);
    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream);
    static int64_t workspace_bytes(const CodecParams& params,
                                   DType dtype,
                                   int64_t count,
                                   int64_t chunk_elems);
};

}  // namespace slimwire
