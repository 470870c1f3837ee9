// The host bodies of the block integers; see simd/table.h.
#pragma once

#include "codecs/block_int/block_int_shape.h"
#include "codecs/simd/table.h"

namespace slimwire {

struct BlockIntTable {
    ChunkKernels<BlockIntShape> int8, int4, int2;
};

SLIMWIRE_HOST_FAMILY(BlockIntTable, host_block_int, avx512)

}  // namespace slimwire
