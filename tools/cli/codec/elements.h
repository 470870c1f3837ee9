// Single elements of any type as numbers, for the commands that make and compare tensors. Not fast.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"

namespace slimwire::cli {

// Element i of a buffer.
[[nodiscard]] double element(DType dtype, const uint8_t* buffer, int64_t i);

// Stores x, rounded to the nearest value of a floating-point type; integers take x as it is,
// limited to their range.
void put_element(DType dtype, uint8_t* buffer, int64_t i, double x);

// Relative L2 distance of two buffers: |a - b| / |b|; 0 where both are all zeros. Not finite when
// an element is not.
[[nodiscard]] double relative_error(DType dtype, const uint8_t* a, const uint8_t* b, int64_t count);

}  // namespace slimwire::cli
