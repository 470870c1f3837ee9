// The host bodies of a sketch; see simd/table.h.
#pragma once

#include "codecs/simd/table.h"

namespace slimwire {

// Rows [row, end) of a sketch's input, a part of it, are added to the cells.
struct SketchPart {
    const uint8_t* input;  // `count` elements of `dtype`, in rows of kSketchCells
    int64_t count;
    int64_t first_row;  // number of row 0
    int64_t row, end;
    DType dtype;
    float* cells;  // kSketchCells
};
struct SketchTable {
    // False where a sum of the part is not finite; the cells then stay as they are.
    bool (*add_part)(const SketchPart&);
};

SLIMWIRE_HOST_FAMILY(SketchTable, host_sketch, avx2)

}  // namespace slimwire
