// The host bodies of the casts; see simd/table.h.
#pragma once

#include "codecs/cast/cast_shape.h"
#include "codecs/simd/table.h"

namespace slimwire {

struct CastTable {
    ChunkKernels<CastShape> bfloat16, float16;
};

SLIMWIRE_HOST_FAMILY(CastTable, host_cast, avx512)

}  // namespace slimwire
