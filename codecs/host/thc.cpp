// Host bodies of THC's operations for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see table.h).
#include "codecs/host/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/host/lanes.h"

#include "codecs/host/rotation.h"

#include "codecs/host/thc_kernels.h"

}  // namespace

const ThcTable SLIMWIRE_HOST_TABLE(host_thc) = {measure_thc, quantise_thc, restore_thc};

}  // namespace slimwire
