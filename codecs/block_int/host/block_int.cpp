// Host bodies of the block integers for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see simd/table.h).
#include "codecs/block_int/host/table.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/simd/tile.h"

#include "codecs/block_int/host/rotation.h"

#include "codecs/block_int/host/block_int_tile.h"

#include "codecs/block_int/host/block_int_fast.h"

#include "codecs/block_int/host/block_int_rotated.h"

#include "codecs/block_int/host/block_int_sources.h"

#include "codecs/block_int/host/block_int_kernels.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/block_int/host/block_int_sum.h"

}  // namespace

const BlockIntTable SLIMWIRE_HOST_TABLE(host_block_int) = {
    block_int_kernels<8>(), block_int_kernels<4>(), block_int_kernels<2>()};

}  // namespace slimwire
