// Host bodies of the coarse quantisers for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see table.h).
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/block_float/host/block_float_tile.h"

#include "codecs/quantizers/host/coarse_codes.h"

#include "codecs/quantizers/host/coarse_scales.h"

#include "codecs/quantizers/host/coarse_kernels.h"

}  // namespace

const CoarseTable SLIMWIRE_HOST_TABLE(host_coarse) = {
    Coarse<CoarseSign>::kKernels,      Coarse<CoarseLevels<2>>::kKernels,
    Coarse<CoarseLevels<4>>::kKernels, Coarse<CoarseLevels<6>>::kKernels,
    Coarse<CoarseLevels<8>>::kKernels, Coarse<CoarsePowers<8>>::kKernels,
    Coarse<CoarsePowers<4>>::kKernels};

}  // namespace slimwire
