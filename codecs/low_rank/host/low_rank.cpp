// Host bodies of low_rank for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see simd/table.h).
#include "codecs/low_rank/host/table.h"
#include "codecs/low_rank/low_rank_shape.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/low_rank/host/low_rank_kernels.h"

#include "codecs/low_rank/host/low_rank_orthogonal.h"

}  // namespace

const LowRankTable SLIMWIRE_HOST_TABLE(host_low_rank) = {multiply_right, orthogonalise,
                                                         multiply_left, restore_low_rank};

}  // namespace slimwire
