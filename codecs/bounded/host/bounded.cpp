// Host bodies of codec bounded for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see simd/table.h).
#include "codecs/bounded/host/table.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/simd/tile.h"

#include "codecs/bounded/host/bounded_planes.h"

#include "codecs/bounded/host/bounded_kernels.h"

}  // namespace

const BoundedTable SLIMWIRE_HOST_TABLE(host_bounded) = Bounded::kTable;

}  // namespace slimwire
