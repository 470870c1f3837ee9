// Host bodies of the block floats for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see table.h).
#include "codecs/host/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/host/lanes.h"

#include "codecs/host/fp8_lanes.h"

#include "codecs/host/put_scaled.h"

#include "codecs/host/fp8_kernels.h"

}  // namespace

const Fp8Table SLIMWIRE_HOST_TABLE(host_block_float) = {Fp8<Fp8e4m3Format>::kKernels,
                                                        Fp8<Fp8e5m2Format>::kKernels};

}  // namespace slimwire
