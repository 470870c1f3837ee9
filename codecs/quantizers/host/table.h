// The host bodies of the quantizers; see simd/table.h.
#pragma once

#include "codecs/quantizers/quantizer_shape.h"
#include "codecs/simd/table.h"

namespace slimwire {

struct QuantizerTable {
    ChunkKernels<QuantizerShape> sign;
    ChunkKernels<QuantizerShape> levels2, levels4, levels6, levels8;  // by the bits of a code
    ChunkKernels<QuantizerShape> powers8, powers4;
};

SLIMWIRE_HOST_FAMILY(QuantizerTable, host_quantizers, avx2)

}  // namespace slimwire
