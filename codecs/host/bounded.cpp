// Host bodies of codec bounded for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see table.h).
#include "codecs/host/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/host/lanes.h"

#include "codecs/host/put_scaled.h"

#include "codecs/host/block_float_tile.h"

#include "codecs/host/bounded_planes.h"

#include "codecs/host/bounded_kernels.h"

}  // namespace

const BoundedTable SLIMWIRE_HOST_TABLE(host_bounded) = Bounded::kTable;

}  // namespace slimwire
