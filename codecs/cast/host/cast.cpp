// Host bodies of the casts for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see simd/table.h).
#include "codecs/cast/host/table.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/cast/host/cast_kernels.h"

}  // namespace

const CastTable SLIMWIRE_HOST_TABLE(host_cast) = {Cast<Bfloat16, StochasticBfloat16>::kKernels,
                                                  Cast<Float16, StochasticFloat16>::kKernels};

}  // namespace slimwire
