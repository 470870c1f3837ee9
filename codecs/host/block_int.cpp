// Host bodies of the block integers for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see table.h).
#include "codecs/host/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/host/lanes.h"

#include "codecs/host/rotation.h"

#include "codecs/host/block_int_tile.h"

#include "codecs/host/block_int_fast.h"

#include "codecs/host/block_int_spikes.h"

#include "codecs/host/block_int_rotated.h"

#include "codecs/host/block_int_kernels.h"

}  // namespace

const BlockIntTable SLIMWIRE_HOST_TABLE(host_block_int) = {
    BlockInt<8>::kKernels, BlockInt<6>::kKernels, BlockInt<4>::kKernels, BlockInt<2>::kKernels};

}  // namespace slimwire
