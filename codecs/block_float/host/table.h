// The host bodies of the block floats; see simd/table.h.
#pragma once

#include "codecs/block_float/block_float_shape.h"
#include "codecs/simd/table.h"

namespace slimwire {

struct BlockFloatTable {
    ChunkKernels<BlockFloatShape> fp8e4m3, fp8e5m2, mxfp4, nvfp4;
};

SLIMWIRE_HOST_FAMILY(BlockFloatTable, host_block_float, avx2)

}  // namespace slimwire
