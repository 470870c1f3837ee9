// The palette codec written a second time, from FORMAT.md and for valid encodings only. It works on
// bits, not on fp32 values, hence apart from reference.h.
#pragma once

#include <cstdint>
#include <vector>

#include "codecs/base/dtype.h"

namespace slimwire::reference {

// The variable-size encoding of `count` > 0 elements of `dtype`, and its inverse.
std::vector<uint8_t> encode_palette(DType dtype, const uint8_t* input, int64_t count);
std::vector<uint8_t> decode_palette(DType dtype, const uint8_t* bytes, int64_t count);

}  // namespace slimwire::reference
