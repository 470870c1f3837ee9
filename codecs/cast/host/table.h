// The host bodies of the casts; see simd/table.h.
#pragma once

#include "codecs/simd/table.h"

namespace slimwire {

struct CastShape {
    bool stochastic;
    bool saturates;  // finite values beyond the target become its largest, else infinite
};
struct CastTable {
    ChunkKernels<CastShape> bfloat16, float16;
};

SLIMWIRE_HOST_FAMILY(CastTable, host_cast, avx512)

}  // namespace slimwire
