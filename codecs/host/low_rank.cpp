// Host bodies of low_rank for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see table.h).
#include "codecs/host/isa_headers.h"
#include "codecs/low_rank_shape.h"

namespace slimwire {
namespace {

#include "codecs/host/lanes.h"

#include "codecs/host/low_rank_kernels.h"

#include "codecs/host/low_rank_orthogonal.h"

}  // namespace

const LowRankTable SLIMWIRE_HOST_TABLE(host_low_rank) = {multiply_right, orthogonalise,
                                                         multiply_left, restore_low_rank};

}  // namespace slimwire
