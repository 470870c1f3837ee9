// Host bodies of the quantizers for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see simd/table.h).
#include "codecs/quantizers/host/table.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/simd/tile.h"

#include "codecs/quantizers/host/quantizer_codes.h"

#include "codecs/quantizers/host/quantizer_scales.h"

#include "codecs/quantizers/host/quantizer_kernels.h"

#include "codecs/simd/block_quantizer.h"

}  // namespace

const QuantizerTable SLIMWIRE_HOST_TABLE(host_quantizers) = {
    BlockQuantizer<Quantizer<QuantizerSign>>::kKernels,
    BlockQuantizer<Quantizer<QuantizerLevels<2>>>::kKernels,
    BlockQuantizer<Quantizer<QuantizerLevels<4>>>::kKernels,
    BlockQuantizer<Quantizer<QuantizerLevels<6>>>::kKernels,
    BlockQuantizer<Quantizer<QuantizerLevels<8>>>::kKernels,
    BlockQuantizer<Quantizer<QuantizerPowers<8>>>::kKernels,
    BlockQuantizer<Quantizer<QuantizerPowers<4>>>::kKernels};

}  // namespace slimwire
