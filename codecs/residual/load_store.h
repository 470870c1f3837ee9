// Residuals between two calls: taken out of their store into fp32 before an encoding, and put back
// after it, in a smaller type or as a moving average; and in other units, where the program's loss
// scale changed. Not a codec: no wire bytes come of it, but
// the store outlives processes, so FORMAT.md ("Stored residuals") fixes it.
//
// Called by the algorithms in collectives/. Host bodies and kernels, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/residual/residual_type.h"

namespace slimwire {

// A run of the stored residuals of one tensor, from element `first` on. kInt8: the codes of all
// elements, then the scales of all blocks.
struct StoredResiduals {
    void* bytes;    // of the whole store; 16-byte aligned
    int64_t elems;  // of the whole store; a multiple of kResidualBlock for kInt8
    int64_t first;  // a multiple of kResidualBlock unless kFloat32
    ResidualType type;
};

// output[i] = the stored value i of the run.
struct LoadResidualArgs {
    StoredResiduals stored;
    float* output;
    int64_t count;
    int32_t max_blocks = 0;  // thread blocks that the kernel may occupy; 0: as many as run at once
};

// stored[i] = keep * stored[i] + take * input[i], where input[i] differs from stored[i] in a bit,
// and the result is finite; rounded stochastically to the type, a block of int8 only where it
// changes. The end of the last block of int8, beyond count, belongs to the run.
struct StoreResidualArgs {
    StoredResiduals stored;
    const float* input;  // finite
    int64_t count;
    float keep;  // 0 and 1: what the encoding left takes the place of the stored value
    float take;
    RandomKey random = {};
    int32_t max_blocks = 0;
};

// Every value of the store times `factor`, rounded once to its type: of int8 the scales alone. What
// would not be finite becomes the largest finite value.
struct RescaleResidualArgs {
    StoredResiduals stored;  // whole: `first` is 0
    float factor;            // positive and finite; powers of two are exact but for underflow
    int32_t max_blocks = 0;
};

SLIMWIRE_OPERATION(load_residual, LoadResidualArgs)
SLIMWIRE_OPERATION(store_residual, StoreResidualArgs)
SLIMWIRE_OPERATION(rescale_residual, RescaleResidualArgs)

// Bytes of a store of `elems` elements; for kInt8 a multiple of kResidualBlock.
[[nodiscard]] uint64_t stored_residual_bytes(ResidualType type, uint64_t elems) noexcept;

}  // namespace slimwire
