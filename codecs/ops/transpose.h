// The columns of a message of rows, one after the other, and back: so that blocks of a codec go
// along columns.
//
// Called by the algorithms in collectives/. A host body and a kernel, equal to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"

namespace slimwire {

// Rows of `row` elements one after the other, `count` elements together (the last row may be
// short), and their columns one after the other, each `column` elements long: element i of column j
// is that of row i, and zero behind the last. Bits as they are.
struct TransposeArgs {
    const void* input;  // aligned to the element size, like `output`, which it does not overlap
    void* output;
    int64_t count;
    int64_t row;
    int64_t column;  // at least the number of rows
    DType dtype;
    bool to_columns;         // else back: `count` elements of rows are written
    int32_t max_blocks = 0;  // thread blocks of a kernel; 0: as many as run at once
};

SLIMWIRE_OPERATION(transpose, TransposeArgs)

}  // namespace slimwire
