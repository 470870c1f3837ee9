// Host bodies of the block floats for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see simd/table.h).
#include "codecs/block_float/host/table.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/block_float/host/block_float_lanes.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/block_float/host/block_float_rounding.h"

#include "codecs/simd/tile.h"

#include "codecs/block_float/host/block_float_scales.h"

#include "codecs/block_float/host/block_float_kernels.h"

#include "codecs/simd/block_quantizer.h"

}  // namespace

const BlockFloatTable SLIMWIRE_HOST_TABLE(host_block_float) = {
    BlockQuantizer<BlockFloat<Fp8e4m3>>::kKernels, BlockQuantizer<BlockFloat<Fp8e5m2>>::kKernels,
    BlockQuantizer<BlockFloat<MxFp4>>::kKernels, BlockQuantizer<BlockFloat<NvFp4>>::kKernels};

}  // namespace slimwire
