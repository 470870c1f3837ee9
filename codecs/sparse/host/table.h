// The host bodies of the sparsifiers; see simd/table.h.
#pragma once

#include "codecs/simd/table.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {

struct SparseTable : ChunkKernels<SparsePlan> {
    // Magnitude bits of the smallest of the plan.capacity largest elements.
    uint32_t (*cut)(const EncodeChunk&, const SparsePlan&);
    // Elements not below the magnitude.
    int64_t (*reach)(const EncodeChunk&, uint32_t least);
};

SLIMWIRE_HOST_FAMILY(SparseTable, host_sparse, avx2)

}  // namespace slimwire
