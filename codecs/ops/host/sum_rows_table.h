// The host bodies of sums of rows; see simd/table.h.
#pragma once

#include "codecs/ops/sum_rows.h"
#include "codecs/simd/table.h"

namespace slimwire {

// Pointers are those of the host, and there is no scale_ptr.
struct SumRowsTable {
    void (*sum)(const SumRowsArgs&);
};

SLIMWIRE_HOST_FAMILY(SumRowsTable, host_sum_rows, avx2)

}  // namespace slimwire
