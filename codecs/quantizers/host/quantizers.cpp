// Host bodies of the quantizers for one instruction set; compiled once per set, with its
// flags. Everything but the table is local to this object (see table.h).
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/block_float/host/block_float_tile.h"

#include "codecs/quantizers/host/quantizer_codes.h"

#include "codecs/quantizers/host/quantizer_scales.h"

#include "codecs/quantizers/host/quantizer_kernels.h"

}  // namespace

const QuantizerTable SLIMWIRE_HOST_TABLE(host_quantizers) = {
    Quantizer<QuantizerSign>::kKernels,      Quantizer<QuantizerLevels<2>>::kKernels,
    Quantizer<QuantizerLevels<4>>::kKernels, Quantizer<QuantizerLevels<6>>::kKernels,
    Quantizer<QuantizerLevels<8>>::kKernels, Quantizer<QuantizerPowers<8>>::kKernels,
    Quantizer<QuantizerPowers<4>>::kKernels};

}  // namespace slimwire
