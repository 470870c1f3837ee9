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
    // GatherMaskedArgs of masked_values.h: whether all elements of `input` are finite; those at the
    // positions of `mask`, if it is not null, become `values`.
    bool (*gather)(const uint8_t* mask, const uint8_t* input, uint8_t* values, const SparsePlan&);
};

SLIMWIRE_HOST_FAMILY(SparseTable, host_sparse, avx2)

}  // namespace slimwire
