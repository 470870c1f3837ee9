// Launchers of the kernels of the sparsifiers; see CudaOps (codec.h).
#pragma once

#include "codecs/launchers.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {

// topk and threshold take one launch, and have no reduction; the others one up to 256 KiB, above it
// some two. randomk needs no workspace.
template <SparseKind kKind>
struct SparseKernels;
template <SparseKind kKind>
struct SparseCuda : Launchers<SparseKernels<kKind>> {
    SLIMWIRE_LAUNCHER static int64_t workspace_bytes(const CodecParams& params,
                                                     DType dtype,
                                                     int64_t count,
                                                     int64_t chunk_elems);
};

}  // namespace slimwire
