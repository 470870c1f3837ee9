// The host bodies of codec bounded; see simd/table.h.
#pragma once

#include "codecs/bounded/bounded_format.h"
#include "codecs/simd/table.h"

namespace slimwire {

using BoundedTable = ChunkKernels<BoundedPlan>;

SLIMWIRE_HOST_FAMILY(BoundedTable, host_bounded, avx2)

}  // namespace slimwire
